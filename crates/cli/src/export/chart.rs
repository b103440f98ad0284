//! The chart of a run: how its cost grew, and when models, tools and sub-agents worked. An SVG without scripts.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use cantle::core::event::{Event, EventKind};

use super::RunRecord;
use super::markup::escaped;
use crate::saved_settings::SavedSettings;
use crate::text::{count, dollars, duration};

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 84.0;
const CURVE_TOP: f64 = 16.0;
const CURVE_HEIGHT: f64 = 96.0;
const LANE_HEIGHT: f64 = 20.0;
const LANES: [&str; 3] = ["Model", "Tools", "Sub-agents"];

/// A budget of more than this many times the spending has no line.
const MAX_BUDGET_SHARE: f64 = 5.0;

/// Blocks and steps of the curve that are closer than this are drawn as one.
const MIN_GAP: f64 = 1.0;

/// Minimum width of a block that has an element, and therefore a label, of its own.
const MIN_LABELLED_WIDTH: f64 = 3.0;

/// A time at which something worked, in coordinates of the chart.
struct Block {
    start: f64,
    end: f64,
    label: Option<String>,
}

/// Elapsed time of a run, without the time between an interruption and its resumption.
struct WorkTime {
    begun: SystemTime,
    /// The times at which the run was resumed, and how long it had rested until then, in total.
    rests: Vec<(SystemTime, Duration)>,
}

impl WorkTime {
    fn new(events: &[Event]) -> Option<Self> {
        let begun = events.first()?.time;
        let (mut latest, mut rested) = (begun, Duration::ZERO);
        let mut rests = Vec::new();
        for event in events.iter().filter(|event| event.depth == 0) {
            if let EventKind::RunResumed { .. } = event.kind {
                rested += event.time.duration_since(latest).unwrap_or_default();
                rests.push((event.time, rested));
            }
            latest = event.time;
        }
        Some(Self { begun, rests })
    }

    fn seconds(&self, time: SystemTime) -> f64 {
        let rests = self.rests.iter().rev();
        let rested = rests.clone().find(|(resumed, _)| *resumed <= time);
        let elapsed = time.duration_since(self.begun).unwrap_or_default();
        let rested = rested.map(|(_, rested)| *rested).unwrap_or_default();
        elapsed.saturating_sub(rested).as_secs_f64()
    }
}

/// Returns the chart of a run; `None` if no model answered.
pub(super) fn svg(record: &RunRecord) -> Option<String> {
    let time = WorkTime::new(&record.events)?;
    let mut spent = Vec::new();
    let mut lanes: [Vec<Block>; 3] = Default::default();
    let mut end: f64 = 0.0;
    for event in &record.events {
        let now = time.seconds(event.time);
        end = end.max(now);
        let (lane, took, label) = match &event.kind {
            EventKind::ModelAnswered {
                turn,
                usage,
                cost_usd,
                duration: took,
                ..
            } => {
                spent.push((now, *cost_usd, usage.total()));
                (0, *took, format!("Turn {turn}: {}", duration(*took)))
            }
            EventKind::ToolFinished {
                tool,
                duration: took,
                ..
            } => (1, *took, format!("{tool}: {}", duration(*took))),
            _ => continue,
        };
        let lane = if event.depth > 0 { 2 } else { lane };
        let block = Block {
            start: (now - took.as_secs_f64()).max(0.0),
            end: now,
            label: Some(label),
        };
        lanes.get_mut(lane)?.push(block);
    }
    if spent.is_empty() || end <= 0.0 {
        return None;
    }
    let x = |seconds: f64| LEFT + (WIDTH - LEFT) * seconds / end;
    let mut lanes: Vec<_> = LANES.into_iter().zip(lanes).collect();
    lanes.retain(|(_, blocks)| !blocks.is_empty());
    let lanes_top = CURVE_TOP + CURVE_HEIGHT + 10.0;
    let height = lanes_top + LANE_HEIGHT * lanes.len() as f64 + 18.0;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"Spending and work over time\">"
    );
    let settings = SavedSettings::read(record.run.note.clone()).ok();
    let budget = settings.map(|settings| (settings.budget_usd, settings.budget_tokens));
    curve(&mut svg, spent, budget.unwrap_or_default(), end, x);
    for (index, (name, blocks)) in lanes.into_iter().enumerate() {
        let y = lanes_top + LANE_HEIGHT * index as f64;
        let _ = write!(
            svg,
            "<text class=\"axis\" x=\"0\" y=\"{}\">{name}</text><g class=\"lane lane{index}\">",
            y + 12.0
        );
        lane(&mut svg, merged(blocks, x), y);
        svg.push_str("</g>");
    }
    for (seconds, anchor) in [(0.0, "start"), (end / 2.0, "middle"), (end, "end")] {
        let _ = write!(
            svg,
            "<text class=\"axis\" x=\"{:.0}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            x(seconds),
            height - 4.0,
            duration(Duration::from_secs_f64(seconds)),
        );
    }
    svg.push_str("</svg>");
    Some(svg)
}

/// Draws the blocks of a lane: those without labels as one path, because a long run has thousands.
fn lane(svg: &mut String, blocks: Vec<Block>, y: f64) {
    let mut path = String::new();
    for Block { start, end, label } in blocks {
        let width = end - start;
        let _ = match label {
            Some(label) if width >= MIN_LABELLED_WIDTH => write!(
                svg,
                "<rect x=\"{start:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"14\" rx=\"2\"><title>{}</title></rect>",
                escaped(&label),
            ),
            _ => write!(path, "M{start:.0} {}h{:.0}", y + 7.0, width.max(1.0)),
        };
    }
    if !path.is_empty() {
        let _ = write!(svg, "<path d=\"{path}\"/>");
    }
}

/// Draws the spending up to each time, and its budget: US dollars if every call has a cost, else tokens.
fn curve(
    svg: &mut String,
    mut spent: Vec<(f64, Option<f64>, u64)>,
    (budget_usd, budget_tokens): (Option<f64>, Option<u64>),
    end: f64,
    x: impl Fn(f64) -> f64,
) {
    spent.sort_by(|left, right| left.0.total_cmp(&right.0));
    let is_priced = spent.iter().all(|(_, cost, _)| cost.is_some());
    let format = |amount: f64| match is_priced {
        true => dollars(amount),
        false => count(amount as u64),
    };
    let amount = |cost: Option<f64>, tokens: u64| match is_priced {
        true => cost.unwrap_or_default(),
        false => tokens as f64,
    };
    let total: f64 = spent
        .iter()
        .map(|(_, cost, tokens)| amount(*cost, *tokens))
        .sum();
    let bottom = CURVE_TOP + CURVE_HEIGHT;
    let budget = match is_priced {
        true => budget_usd,
        false => budget_tokens.map(|tokens| tokens as f64),
    };
    // A budget that is far above the curve would press it to the ground.
    let shown = budget.filter(|budget| *budget <= total * MAX_BUDGET_SHARE);
    let top = shown.unwrap_or_default().max(total);
    let y = |amount: f64| match top > 0.0 {
        true => bottom - CURVE_HEIGHT * amount / top,
        false => bottom,
    };
    if let Some(budget) = shown {
        let height = y(budget);
        let _ = write!(
            svg,
            "<path class=\"limit\" d=\"M{LEFT} {height:.1}H{WIDTH}\"/>"
        );
    }
    if let Some(budget) = budget {
        let _ = write!(
            svg,
            "<text class=\"axis budget\" x=\"0\" y=\"{}\">of {}</text>",
            CURVE_TOP + 42.0,
            format(budget),
        );
    }
    // From the end of the base line, so that closing the path for its area adds no slope.
    let mut path = format!("M{WIDTH} {bottom}H{LEFT}");
    let (mut sum, mut latest) = (0.0, f64::MIN);
    for (seconds, cost, tokens) in spent {
        sum += amount(cost, tokens);
        let column = x(seconds);
        // Steps that are too close to be seen are left out, but for the last.
        if column - latest >= MIN_GAP || sum >= total {
            let _ = write!(path, "H{column:.0}V{:.1}", y(sum));
            latest = column;
        }
    }
    let _ = write!(path, "H{:.0}", x(end));
    let unit = if is_priced { "Cost" } else { "Tokens" };
    let _ = write!(
        svg,
        "<path class=\"curve\" d=\"{path}\"/>\
         <path class=\"base\" d=\"M{LEFT} {bottom}H{WIDTH}\"/>\
         <text class=\"axis\" x=\"0\" y=\"{}\">{unit}</text><text class=\"axis\" x=\"0\" y=\"{}\">{}</text>",
        CURVE_TOP + 10.0,
        CURVE_TOP + 26.0,
        format(total),
    );
}

/// Returns the blocks in coordinates, joined where no gap could be seen.
fn merged(mut blocks: Vec<Block>, x: impl Fn(f64) -> f64) -> Vec<Block> {
    blocks.sort_by(|left, right| left.start.total_cmp(&right.start));
    let mut merged: Vec<Block> = Vec::new();
    for block in blocks {
        let (start, end) = (x(block.start), x(block.end));
        match merged.last_mut() {
            // Short blocks would hide each other; long ones keep their labels.
            Some(last) if start - last.end < MIN_GAP && end - start < MIN_LABELLED_WIDTH => {
                last.end = last.end.max(end);
                last.label = None;
            }
            _ => merged.push(Block {
                start,
                end,
                label: block.label,
            }),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::{Block, lane, merged};

    #[test]
    fn short_blocks_share_a_path_and_long_ones_have_labels() {
        let block = |start, end| Block {
            start,
            end,
            label: Some("<noop>".to_owned()),
        };
        let blocks = vec![block(20.0, 60.0), block(10.0, 11.0), block(0.0, 0.2)];
        let mut svg = String::new();
        lane(&mut svg, merged(blocks, |seconds| seconds), 5.0);
        assert_eq!(
            svg,
            "<rect x=\"20.0\" y=\"5\" width=\"40.0\" height=\"14\" rx=\"2\"><title>&lt;noop&gt;</title></rect>\
             <path d=\"M0 12h1M10 12h1\"/>"
        );
    }
}
