//! Executors that are measured: with everything on, with everything off, and in between; and the calls that drive them.

use std::time::Duration;

use skillyard::pb::executor::v1::executor_service_client::ExecutorServiceClient;
use skillyard::pb::executor::v1::run_event::Event;
use skillyard::pb::executor::v1::{Outcome, RunSkillRequest, run_skill_request::Arguments};
use skillyard_tests::access::{Door, Show};
use skillyard_tests::world::{Builder, endpoint};
use skillyard_tests::{Skill, World, pack};

use crate::run::drive::{self, ARGUMENTS, Target};

/// How an executor is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    /// Callers have identities, slots are confined as far as the kernel can, runs are measured and limited, metrics are
    /// served. The journal is always on.
    AllOn,
    /// None of these.
    AllOff,
    /// Everything but isolation.
    NotConfined,
}

impl Setting {
    pub(crate) fn builder(self) -> Builder {
        let builder = builder();
        let identified = |builder: Builder| builder.known_callers().flag("--admin-listen", "127.0.0.1:0");
        match self {
            Self::AllOn => identified(builder),
            Self::AllOff => {
                let open = builder.flag("--isolation-at-most", "none");
                open.flag("--max-memory", "none").flag("--max-processes", "none")
            }
            Self::NotConfined => identified(builder).flag("--isolation-at-most", "none"),
        }
    }

    /// A way to call one.
    pub(crate) fn caller(self, world: &World) -> Calls {
        let show = match self {
            Self::AllOff => Show::default(),
            _ => Show::token(world.identities.token("orchestrator")),
        };
        let channel = endpoint(world.executor_address()).connect_lazy();
        Calls { client: ExecutorServiceClient::new(Door::new(channel, show)), skill: "tiny" }
    }
}

/// A world where nobody else comes and goes.
pub(crate) fn builder() -> Builder {
    World::builder_in(crate::place())
}

/// An executor with the smallest skill, warm: every slot has been started, and every page been touched.
pub(crate) async fn warm(builder: Builder, setting: Setting, slots: u32) -> (World, Calls) {
    let builder = builder.slots(slots, 256).skill(Skill::tiny("tiny"));
    let mut world = builder.start().await;
    let calls = setting.caller(&world);
    let pid = world.executor_server().pid();
    drive::measure(&calls, pid, slots as usize, Duration::from_millis(500)).await;
    (world, calls)
}

/// Calls of one skill, on one connection.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    pub(crate) client: ExecutorServiceClient<Door>,
    pub(crate) skill: &'static str,
}

impl Target for Calls {
    async fn run(&mut self) {
        let arguments = Some(Arguments::ArgsJson(ARGUMENTS.to_owned()));
        let request = RunSkillRequest { skill: self.skill.to_owned(), arguments, ..Default::default() };
        let mut events = self.client.run_skill(request).await.unwrap().into_inner();
        let (mut result, mut outcome) = (String::new(), None);
        while let Some(response) = events.message().await.unwrap() {
            match response.event.and_then(|event| event.event) {
                Some(Event::Result(chunk)) => result.push_str(&chunk.json),
                Some(Event::Finished(finished)) => outcome = Some(finished.outcome()),
                _ => {}
            }
        }
        assert_eq!((outcome, &*result), (Some(Outcome::Succeeded), pack::TINY_RESULT));
    }
}
