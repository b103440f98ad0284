//! Lists of sandboxes.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, RawQuery, State as Handed};
use axum::response::{IntoResponse as _, Response};
use http::HeaderValue;
use jiff::Timestamp;
use url::form_urlencoded;

use super::shapes::Listed;
use crate::fleet::{Fleet, Member};
use crate::keys::Owner;
use crate::refusal::Refusal;

/// Sandboxes of one page.
const MOST: usize = 100;

/// What is wanted of a list.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    metadata: BTreeMap<String, String>,
    states: Vec<String>,
    ascending: bool,
    started_after: Option<Timestamp>,
    template: Option<String>,
    limit: Option<usize>,
    after: Option<(Timestamp, String)>,
}

impl Wanted {
    fn of(query: &str) -> Result<Self, Refusal> {
        let mut wanted = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let invalid = || Refusal::bad_request(format!("`{name}` can't be `{value}`"));
            match &*name {
                "metadata" => wanted.metadata = metadata(&value),
                "state" => {
                    wanted.states.extend(value.split(',').map(str::to_owned));
                }
                "order" => wanted.ascending = value == "asc",
                "startedAfter" => {
                    wanted.started_after = Some(value.parse().map_err(|_| invalid())?);
                }
                "template" => wanted.template = Some(value.into_owned()),
                "limit" => {
                    let limit: usize = value.parse().map_err(|_| invalid())?;
                    wanted.limit = Some(limit.clamp(1, MOST));
                }
                "nextToken" if !value.is_empty() => {
                    wanted.after = Some(read_token(&value).ok_or_else(invalid)?);
                }
                _ => {}
            }
        }
        Ok(wanted)
    }

    fn includes(&self, member: &Member) -> bool {
        let asked = &member.facts.asked;
        let state = if member.is_running() {
            "running"
        } else {
            "paused"
        };
        let has = |(name, value): (&String, &String)| asked.metadata.get(name) == Some(value);
        (self.states.is_empty() || self.states.iter().any(|wanted| wanted == state))
            && self.metadata.iter().all(has)
            && self
                .template
                .as_ref()
                .is_none_or(|template| *template == asked.template)
            && self
                .started_after
                .is_none_or(|after| member.facts.started_at > after)
    }
}

/// `a=b%2520c`: pairs, each side of which SDKs encode twice and older ones once.
fn metadata(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let twice = |text: &str| decoded(&decoded(text));
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (twice(name), twice(value))
        })
        .collect()
}

/// Decodes `%20` and `+`, once.
fn decoded(text: &str) -> String {
    // As the name of a pair without a value.
    let escaped = text.replace('=', "%3D").replace('&', "%26");
    let mut pairs = form_urlencoded::parse(escaped.as_bytes());
    pairs
        .next()
        .map(|(name, _)| name.into_owned())
        .unwrap_or_default()
}

fn read_token(token: &str) -> Option<(Timestamp, String)> {
    let (nanoseconds, id) = token.split_once('-')?;
    let timestamp = Timestamp::from_nanosecond(nanoseconds.parse().ok()?).ok()?;
    Some((timestamp, id.to_owned()))
}

fn write_token((timestamp, id): (Timestamp, &str)) -> String {
    format!("{}-{id}", timestamp.as_nanosecond())
}

fn place(member: &Member) -> (Timestamp, &str) {
    (member.facts.started_at, &member.facts.id)
}

/// `GET /sandboxes`: those that run, all at once.
pub(super) async fn all(
    Handed(fleet): Handed<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let mut wanted = Wanted::of(&query.unwrap_or_default())?;
    wanted.states = vec!["running".to_owned()];
    let members = found(&fleet, &owner, &wanted);
    let listed: Vec<_> = members
        .iter()
        .map(|member| Listed::new(member, &fleet.settings))
        .collect();
    Ok(Json(listed).into_response())
}

/// `GET /v2/sandboxes`: page by page.
pub(super) async fn pages(
    Handed(fleet): Handed<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let wanted = Wanted::of(&query.unwrap_or_default())?;
    let members = found(&fleet, &owner, &wanted);
    let running = members.iter().filter(|member| member.is_running()).count();
    let is_later = |member: &&Arc<Member>| match &wanted.after {
        None => true,
        Some((timestamp, id)) => {
            let ordering = place(member).cmp(&(*timestamp, id.as_str()));
            if wanted.ascending {
                ordering.is_gt()
            } else {
                ordering.is_lt()
            }
        }
    };
    let limit = wanted.limit.unwrap_or(MOST);
    let mut page: Vec<&Arc<Member>> = members.iter().filter(is_later).take(limit + 1).collect();
    let has_more = page.len() > limit;
    page.truncate(limit);
    let listed: Vec<_> = page
        .iter()
        .map(|member| Listed::new(member, &fleet.settings))
        .collect();
    let mut response = Json(listed).into_response();
    let headers = response.headers_mut();
    headers.insert("x-total-running", running.into());
    if let (true, Some(last)) = (has_more, page.last())
        && let Ok(token) = HeaderValue::from_str(&write_token(place(last)))
    {
        headers.insert("x-next-token", token);
    }
    Ok(response)
}

fn found(fleet: &Fleet, owner: &Owner, wanted: &Wanted) -> Vec<Arc<Member>> {
    let mut members = fleet.members();
    members.retain(|member| member.facts.owner == *owner && wanted.includes(member));
    members.sort_by(|one, other| place(one).cmp(&place(other)));
    if !wanted.ascending {
        members.reverse();
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_decoded_as_often_as_it_was_encoded() {
        let query = |query| Wanted::of(query).unwrap().metadata;
        let one = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        assert_eq!(query("metadata=a%3Db%252520c"), one("a", "b c"));
        assert_eq!(query("metadata=a%3Db%2520c"), one("a", "b c"));
        assert_eq!(query("metadata=a%3Db"), one("a", "b"));
        assert_eq!(query("metadata=user%3Da%252526b%26x%3D1").len(), 2);
        assert_eq!(query("metadata=k%3Dx%25253Dy"), one("k", "x=y"));
    }

    #[test]
    fn a_token_says_where_to_go_on() {
        let timestamp = Timestamp::from_nanosecond(1_700_000_000_123_456_789).unwrap();
        let token = write_token((timestamp, "iabc"));
        assert_eq!(read_token(&token), Some((timestamp, "iabc".to_owned())));
        assert!(Wanted::of("nextToken=nonsense").is_err());
        assert!(Wanted::of("limit=x").is_err());
    }
}
