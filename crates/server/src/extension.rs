//! Services beside the E2B API, for clients with the same keys.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use auto_impl::auto_impl;
use axum::body::Body;
use axum::response::Response;
use cantle_core::principal::PrincipalId;
use http::Request;

use crate::fleet::{Fleet, SandboxPlace};

/// A service at a path of its own.
#[async_trait]
#[auto_impl(Arc, Box)]
pub trait Extension: Send + Sync {
    /// Answers a request of a client that has a key.
    async fn answer(&self, client: ExtensionClient, request: Request<Body>) -> Response;

    /// Releases everything, when the server stops.
    async fn stop(&self);
}

/// Services by their paths.
pub(crate) type Extensions = BTreeMap<String, Arc<dyn Extension>>;

/// A client of an [`Extension`].
#[derive(Clone)]
pub struct ExtensionClient {
    pub(crate) principal: PrincipalId,
    pub(crate) fleet: Arc<Fleet>,
}

impl ExtensionClient {
    /// Returns the principal of the client's key.
    pub fn principal(&self) -> &PrincipalId {
        &self.principal
    }

    /// Takes the place of a running sandbox, which the limits of the server count until it is dropped.
    ///
    /// # Errors
    /// A message for the client, if there is none.
    pub fn take_place(&self) -> Result<SandboxPlace, String> {
        let place = self.fleet.take_place(&self.principal);
        place.map_err(|error| error.message().to_owned())
    }
}

impl fmt::Debug for ExtensionClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtensionClient")
            .field("principal", &self.principal)
            .finish_non_exhaustive()
    }
}
