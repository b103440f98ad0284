//! Listing sandboxes.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, RawQuery, State};
use axum::response::{IntoResponse as _, Response};
use http::HeaderValue;
use jiff::Timestamp;
use url::form_urlencoded;

use super::responses::SandboxSummary;
use crate::api_error::ApiError;
use crate::fleet::{Fleet, Member};
use crate::keys::Owner;

/// Maximum sandboxes per page.
const MAX_PAGE_SIZE: usize = 100;

/// Filters, order and page of a list request.
#[derive(Debug, Default, PartialEq, Eq)]
struct ListQuery {
    metadata: BTreeMap<String, String>,
    states: Vec<String>,
    ascending: bool,
    started_after: Option<Timestamp>,
    template: Option<String>,
    limit: Option<usize>,
    after: Option<(Timestamp, String)>,
}

impl ListQuery {
    fn parse(text: &str) -> Result<Self, ApiError> {
        let mut query = Self::default();
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            let invalid = || ApiError::bad_request(format!("invalid value `{value}` of `{name}`"));
            match &*name {
                "metadata" => query.metadata = metadata(&value),
                "state" => {
                    query.states.extend(value.split(',').map(str::to_owned));
                }
                "order" => query.ascending = value == "asc",
                "startedAfter" => {
                    query.started_after = Some(value.parse().map_err(|_| invalid())?);
                }
                "template" => query.template = Some(value.into_owned()),
                "limit" => {
                    let limit: usize = value.parse().map_err(|_| invalid())?;
                    query.limit = Some(limit.clamp(1, MAX_PAGE_SIZE));
                }
                "nextToken" if !value.is_empty() => {
                    query.after = Some(read_token(&value).ok_or_else(invalid)?);
                }
                _ => {}
            }
        }
        Ok(query)
    }

    fn includes(&self, member: &Member) -> bool {
        let spec = &member.identity.spec;
        let state = if member.is_running() {
            "running"
        } else {
            "paused"
        };
        let has = |(name, value): (&String, &String)| spec.metadata.get(name) == Some(value);
        (self.states.is_empty() || self.states.iter().any(|query| query == state))
            && self.metadata.iter().all(has)
            && self
                .template
                .as_ref()
                .is_none_or(|template| *template == spec.template)
            && self
                .started_after
                .is_none_or(|after| member.identity.started_at > after)
    }
}

/// Parses pairs such as `a=b%2520c`. SDKs encode each side twice, older ones once.
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

/// Decodes `%20` and `+` once.
fn decoded(text: &str) -> String {
    // Parsed as the name of a pair without a value.
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

fn sort_key(member: &Member) -> (Timestamp, &str) {
    (member.identity.started_at, &member.identity.id)
}

/// `GET /sandboxes`: all running sandboxes.
pub(super) async fn all(
    State(fleet): State<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let mut query = ListQuery::parse(&query.unwrap_or_default())?;
    query.states = vec!["running".to_owned()];
    let members = matching(&fleet, &owner, &query);
    let listed: Vec<_> = members
        .iter()
        .map(|member| SandboxSummary::new(member, &fleet.settings))
        .collect();
    Ok(Json(listed).into_response())
}

/// `GET /v2/sandboxes`: pages of sandboxes.
pub(super) async fn pages(
    State(fleet): State<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let query = ListQuery::parse(&query.unwrap_or_default())?;
    let members = matching(&fleet, &owner, &query);
    let running = members.iter().filter(|member| member.is_running()).count();
    let is_later = |member: &&Arc<Member>| match &query.after {
        None => true,
        Some((timestamp, id)) => {
            let ordering = sort_key(member).cmp(&(*timestamp, id.as_str()));
            if query.ascending {
                ordering.is_gt()
            } else {
                ordering.is_lt()
            }
        }
    };
    let limit = query.limit.unwrap_or(MAX_PAGE_SIZE);
    let mut page: Vec<&Arc<Member>> = members.iter().filter(is_later).take(limit + 1).collect();
    let has_more = page.len() > limit;
    page.truncate(limit);
    let listed: Vec<_> = page
        .iter()
        .map(|member| SandboxSummary::new(member, &fleet.settings))
        .collect();
    let mut response = Json(listed).into_response();
    let headers = response.headers_mut();
    headers.insert("x-total-running", running.into());
    if let (true, Some(last)) = (has_more, page.last())
        && let Ok(token) = HeaderValue::from_str(&write_token(sort_key(last)))
    {
        headers.insert("x-next-token", token);
    }
    Ok(response)
}

fn matching(fleet: &Fleet, owner: &Owner, query: &ListQuery) -> Vec<Arc<Member>> {
    let mut members = fleet.members();
    members.retain(|member| member.identity.owner == *owner && query.includes(member));
    members.sort_by(|one, other| sort_key(one).cmp(&sort_key(other)));
    if !query.ascending {
        members.reverse();
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_encoded_once_or_twice_is_decoded() {
        let query = |query| ListQuery::parse(query).unwrap().metadata;
        let one = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        assert_eq!(query("metadata=a%3Db%252520c"), one("a", "b c"));
        assert_eq!(query("metadata=a%3Db%2520c"), one("a", "b c"));
        assert_eq!(query("metadata=a%3Db"), one("a", "b"));
        assert_eq!(query("metadata=user%3Da%252526b%26x%3D1").len(), 2);
        assert_eq!(query("metadata=k%3Dx%25253Dy"), one("k", "x=y"));
    }

    #[test]
    fn a_page_token_round_trips() {
        let timestamp = Timestamp::from_nanosecond(1_700_000_000_123_456_789).unwrap();
        let token = write_token((timestamp, "iabc"));
        assert_eq!(read_token(&token), Some((timestamp, "iabc".to_owned())));
        assert!(ListQuery::parse("nextToken=nonsense").is_err());
        assert!(ListQuery::parse("limit=x").is_err());
    }
}
