//! ListSkills without encoding any skill twice: a skill's bytes are kept with it, and a page is made of them. On the wire
//! it is a `ListSkillsResponse` like any other.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use prost::Message;
use prost::bytes::Bytes;
use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::catalog_service_server::CatalogServiceServer;
use skillyard::pb::skill::v1::Skill as SkillMessage;
use skillyard::wire;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::catalog;
use crate::catalog::snapshot::Listed;

/// What is answered here; everything else is for the generated server.
const LIST_SKILLS: &str = "/skillyard.registry.v1.CatalogService/ListSkills";

/// A `ListSkillsResponse` whose skills are encoded: bytes stand on the wire as messages do.
#[derive(Clone, PartialEq, Message)]
pub(super) struct EncodedSkills {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub(super) skills: Vec<Bytes>,
    #[prost(string, tag = "2")]
    pub(super) next_page_token: String,
    #[prost(string, tag = "3")]
    pub(super) catalog_version: String,
    #[prost(int32, tag = "4")]
    pub(super) total_size: i32,
}

impl EncodedSkills {
    /// The message that it is.
    pub(super) fn decoded(self) -> pb::ListSkillsResponse {
        // They were encoded here.
        let skill = |bytes: Bytes| SkillMessage::decode(bytes).unwrap_or_default();
        pb::ListSkillsResponse {
            skills: self.skills.into_iter().map(skill).collect(),
            next_page_token: self.next_page_token,
            catalog_version: self.catalog_version,
            total_size: self.total_size,
        }
    }
}

/// A skill as it stands on the wire.
pub(super) fn skill(listed: &Listed<'_>) -> Bytes {
    let bytes = listed.once(|found| wire::skill_to_wire(&found.skill).encode_to_vec());
    Bytes::from_owner(Arc::clone(bytes))
}

/// CatalogService, with ListSkills answered from bytes.
#[derive(Clone, Debug)]
pub(super) struct Server {
    service: Arc<catalog::Service>,
    others: CatalogServiceServer<catalog::Service>,
}

impl Server {
    pub(super) fn new(service: catalog::Service) -> Self {
        let service = Arc::new(service);
        Self { others: CatalogServiceServer::from_arc(Arc::clone(&service)), service }
    }
}

impl NamedService for Server {
    const NAME: &'static str = <CatalogServiceServer<catalog::Service> as NamedService>::NAME;
}

type Answer = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

impl Service<http::Request<Body>> for Server {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<http::Request<Body>>::poll_ready(&mut self.others, context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        if request.uri().path() != LIST_SKILLS {
            return self.others.call(request);
        }
        let list = List(Arc::clone(&self.service));
        Box::pin(async move { Ok(Grpc::new(ProstCodec::default()).unary(list, request).await) })
    }
}

struct List(Arc<catalog::Service>);

impl UnaryService<pb::ListSkillsRequest> for List {
    type Response = EncodedSkills;
    type Future = Ready<Result<Response<EncodedSkills>, Status>>;

    fn call(&mut self, request: Request<pb::ListSkillsRequest>) -> Self::Future {
        ready(self.0.list(request))
    }
}
