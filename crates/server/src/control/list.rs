//! Listing sandboxes.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::RawQuery;
use axum::response::{IntoResponse as _, Response};
use http::HeaderValue;
use jiff::Timestamp;
use url::form_urlencoded;

use super::Client;
use super::responses::SandboxSummary;
use crate::accounts::Account;
use crate::api_error::{ApiError, ApiResult};
use crate::body::SMALL_RESPONSE_BYTES;
use crate::fleet::Member;
use crate::tasks;

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
    fn parse(text: &str) -> ApiResult<Self> {
        let mut query = Self::default();
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            let invalid = || ApiError::bad_request(format!("invalid value `{value}` of `{name}`"));
            match &*name {
                "metadata" => query.metadata = metadata(&value),
                "state" => query.states.extend(value.split(',').map(str::to_owned)),
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

    /// Compares sort keys in the requested order.
    fn order(&self, one: SortKey<'_>, other: SortKey<'_>) -> Ordering {
        if self.ascending {
            one.cmp(&other)
        } else {
            other.cmp(&one)
        }
    }

    /// Returns whether a sandbox comes after the previous page.
    fn is_later(&self, member: &Member) -> bool {
        let after = self.after.as_ref();
        after.is_none_or(|(at, id)| self.order(sort_key(member), (*at, id)).is_gt())
    }

    fn includes(&self, member: &Member) -> bool {
        let spec = &member.identity.spec;
        let state = member.state_name();
        let has = |(name, value): (&String, &String)| spec.metadata.get(name) == Some(value);
        (self.states.is_empty() || self.states.iter().any(|query| query == state))
            && self.metadata.iter().all(has)
            && (self.template.iter()).all(|template| *template == spec.template)
            && (self.started_after.iter()).all(|after| member.identity.started_at >= *after)
    }
}

/// Parses pairs such as `a=b%2520c`. SDKs encode each side twice, older ones once.
fn metadata(text: &str) -> BTreeMap<String, String> {
    let pairs = form_urlencoded::parse(text.as_bytes());
    let again = pairs.map(|(name, value)| (decoded(&name), decoded(&value)));
    again.collect()
}

/// Decodes `%20` and `+` once.
fn decoded(text: &str) -> String {
    // Parsed as the name of a pair without a value.
    let escaped = text.replace('=', "%3D").replace('&', "%26");
    let pairs = form_urlencoded::parse(escaped.as_bytes());
    pairs.map(|(name, _)| name).collect()
}

fn read_token(token: &str) -> Option<(Timestamp, String)> {
    let (nanoseconds, id) = token.split_once('-')?;
    let timestamp = Timestamp::from_nanosecond(nanoseconds.parse().ok()?).ok()?;
    Some((timestamp, id.to_owned()))
}

fn write_token((timestamp, id): SortKey<'_>) -> String {
    format!("{}-{id}", timestamp.as_nanosecond())
}

/// Time of creation and id.
type SortKey<'a> = (Timestamp, &'a str);

fn sort_key(member: &Member) -> SortKey<'_> {
    (member.identity.started_at, &member.identity.id)
}

/// `GET /sandboxes`: all running sandboxes.
pub(super) async fn all(client: Client, RawQuery(query): RawQuery) -> ApiResult<Response> {
    let mut query = ListQuery::parse(&query.unwrap_or_default())?;
    query.states = vec!["running".to_owned()];
    summaries(&client, matching(&client, &query)).await
}

/// `GET /v2/sandboxes`: pages of sandboxes.
pub(super) async fn pages(client: Client, RawQuery(query): RawQuery) -> ApiResult<Response> {
    let query = ListQuery::parse(&query.unwrap_or_default())?;
    let mut page = matching(&client, &query);
    let running = page.iter().filter(|member| member.is_running()).count();
    page.retain(|member| query.is_later(member));
    let limit = query.limit.unwrap_or(MAX_PAGE_SIZE);
    let has_more = page.len() > limit;
    page.truncate(limit);
    let last = page.last().filter(|_| has_more);
    let token = last.map(|last| write_token(sort_key(last)));
    let mut response = summaries(&client, page).await?;
    let headers = response.headers_mut();
    headers.insert("x-total-running", running.into());
    if let Some(Ok(token)) = token.map(HeaderValue::try_from) {
        headers.insert("x-next-token", token);
    }
    Ok(response)
}

/// Responds with the summaries of sandboxes, which may have much metadata.
async fn summaries(client: &Client, members: Vec<Arc<Member>>) -> ApiResult<Response> {
    let metadata = members.iter().flat_map(|it| &it.identity.spec.metadata);
    let size_bytes: usize = metadata.map(|(name, value)| name.len() + value.len()).sum();
    let mut charge = Account::new(&client.fleet.accounts, &client.owner).charge();
    if size_bytes as u64 >= SMALL_RESPONSE_BYTES {
        let charged = charge.grow(size_bytes);
        charged.map_err(|error| ApiError::quota_exceeded(error.to_string()))?;
    }
    let fleet = Arc::clone(&client.fleet);
    let response = tasks::compute(size_bytes, move || {
        // Until `Control::answer` charges the response; also if the client disconnects.
        let _charge = charge;
        let members = members.iter();
        let summaries = members.map(|member| SandboxSummary::new(member, &fleet.settings));
        Json(summaries.collect::<Vec<_>>()).into_response()
    });
    response.await.map_err(|_| ApiError::stopping())
}

fn matching(client: &Client, query: &ListQuery) -> Vec<Arc<Member>> {
    let mut members = client.fleet.members();
    members.retain(|member| member.identity.owner == client.owner && query.includes(member));
    members.sort_by(|one, other| query.order(sort_key(one), sort_key(other)));
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
