//! Resource usage, measured inside the sandbox.

use jiff::Timestamp;
use jiff::fmt::serde::timestamp;
use serde::Serialize;

use super::RunningSandbox;
use super::error::Result;
use super::helper;

/// Maximum output of the script.
const MAX_OUTPUT_BYTES: usize = 4096;

/// Samples the CPU ticks of all visible processes twice, 0.1 s apart, then memory and disk.
const SCRIPT: &str = r#"
ticks() { cat /proc/[0-9]*/stat 2>/dev/null | { t=0; while IFS= read -r l; do l=${l##*) }; set -- $l; t=$((t+${12}+${13})); done; echo $t; }; }
a=$(ticks); sleep 0.1; b=$(ticks)
r=0; for f in /proc/[0-9]*/statm; do { read -r _ p _ < "$f"; } 2>/dev/null && r=$((r+p)); done
echo "$(nproc) $(getconf CLK_TCK) $((b-a)) $((r*$(getconf PAGESIZE)))"
while read -r k v _; do case $k in MemTotal:|Cached:) echo "$k $v";; esac; done < /proc/meminfo
df -kP . | tail -1
"#;

/// Used and total resources, as envd reports them; sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Usage {
    #[serde(rename = "ts", with = "timestamp::second::required")]
    pub(crate) at: Timestamp,
    pub(crate) cpu_count: u64,
    /// In percent of one processor.
    pub(crate) cpu_used_pct: f64,
    pub(crate) mem_used: u64,
    pub(crate) mem_total: u64,
    pub(crate) mem_cache: u64,
    pub(crate) disk_used: u64,
    pub(crate) disk_total: u64,
}

/// Measures what the programs in the sandbox can report; the rest is 0.
pub(crate) async fn measure(live: &RunningSandbox) -> Result<Usage> {
    let argv = ["/bin/bash", "-c", SCRIPT];
    let output = helper::run(&live.acquire()?, argv, MAX_OUTPUT_BYTES).await?;
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    Ok(parse(&text.unwrap_or_default()))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "ticks of a tenth of a second have few digits"
)]
fn parse(text: &str) -> Usage {
    let mut usage = Usage {
        at: Timestamp::now(),
        ..Usage::default()
    };
    for (index, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| -> u64 {
            words
                .get(at)
                .and_then(|word| word.parse().ok())
                .unwrap_or(0)
        };
        // A command may have replaced the program that prints them.
        let kibibytes = |at| number(at).saturating_mul(1024);
        match words.first() {
            Some(&"MemTotal:") => usage.mem_total = kibibytes(1),
            Some(&"Cached:") => usage.mem_cache = kibibytes(1),
            _ if index == 0 => {
                usage.cpu_count = number(0);
                let ticks_in_time = (number(1) as f64 / 10.0).max(1.0);
                usage.cpu_used_pct = number(2) as f64 / ticks_in_time * 100.0;
                usage.mem_used = number(3);
            }
            _ => {
                usage.disk_total = kibibytes(1);
                usage.disk_used = kibibytes(2);
            }
        }
    }
    usage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_output_is_parsed() {
        let text = "2 100 5 4096\nMemTotal: 8 kB\nCached: 2 kB\noverlay 100 40 60 40% /home/user\n";
        let usage = parse(text);
        let expected = Usage {
            at: usage.at,
            cpu_count: 2,
            cpu_used_pct: 50.0,
            mem_used: 4096,
            mem_total: 8192,
            mem_cache: 2048,
            disk_used: 40 * 1024,
            disk_total: 100 * 1024,
        };
        assert_eq!(usage, expected);
        let forged = parse("\noverlay 18446744073709551615 1");
        assert_eq!((forged.disk_total, forged.disk_used), (u64::MAX, 1024));
    }
}
