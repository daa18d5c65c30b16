//! What the executor and a slot say to each other: one SEQPACKET message each, a job's number and a kind first.
//! Decoding refuses what it does not know and never panics, whatever the bytes. Sends nothing itself.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use super::{Excess, Exit, Job, Limited, SlotEvent, Usage};
use crate::isolation::InForce;

/// The longest message, in bytes. A SEQPACKET socket takes about 200 KiB by default.
pub(super) const MAX_MESSAGE: usize = 192 * 1024;

/// The longest order, and the longest report.
pub(super) const MAX_SHORT: usize = 64;

/// The number in messages that belong to no job. Jobs count from 1.
pub(super) const NO_JOB: u64 = 0;

/// What the executor asks of a running job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// SIGTERM to the whole tree.
    Terminate,
    /// SIGKILL to the whole tree.
    Kill,
    /// End what outlived the leader.
    Sweep,
}

/// A job as the slot reads it: borrowed from the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Start<'a> {
    pub(super) program: &'a Path,
    pub(super) directory: &'a Path,
    pub(super) environment: Vec<(&'a OsStr, &'a OsStr)>,
}

/// From the executor to the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request<'a> {
    /// Comes with three descriptors.
    Start(Start<'a>),
    Order(Order),
}

/// From the slot to the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// Once, at the slot's start, with [`NO_JOB`].
    Ready(InForce),
    Started {
        pid: i32,
    },
    SpawnFailed {
        errno: i32,
    },
    OverLimit(Excess),
    Exited {
        exit: Exit,
        usage: Usage,
        left: bool,
    },
    Clean,
}

impl Report {
    /// What it means to the run, if anything.
    pub(super) fn event(self) -> Option<SlotEvent> {
        match self {
            Self::Ready(_) => None,
            Self::Started { pid } => Some(SlotEvent::Started { pid }),
            Self::SpawnFailed { errno } => Some(SlotEvent::SpawnFailed { errno }),
            Self::OverLimit(excess) => Some(SlotEvent::OverLimit(excess)),
            Self::Exited { exit, usage, left } => Some(SlotEvent::Exited { exit, usage, left }),
            Self::Clean => Some(SlotEvent::Clean),
        }
    }
}

/// The length that [`encode_start`] will need.
pub(super) fn start_size(job: &Job<'_>) -> usize {
    let field = |length: usize| 4 + length;
    HEADER + field(job.program.as_os_str().len()) + field(job.directory.as_os_str().len()) + 4 + environment_size(job)
}

/// The environment's share of [`start_size`].
pub(super) fn environment_size(job: &Job<'_>) -> usize {
    job.environment.iter().map(|(name, value)| 8 + name.len() + value.len()).sum()
}

/// Replaces what is in `message`. The caller has checked [`start_size`] against [`MAX_MESSAGE`].
pub(super) fn encode_start(message: &mut Vec<u8>, number: u64, job: &Job<'_>) {
    header(message, number, b'J');
    put_bytes(message, job.program.as_os_str().as_bytes());
    put_bytes(message, job.directory.as_os_str().as_bytes());
    put_length(message, job.environment.len());
    for (name, value) in job.environment {
        put_bytes(message, name.as_bytes());
        put_bytes(message, value.as_bytes());
    }
}

/// Replaces what is in `message`.
pub(super) fn encode_order(message: &mut Vec<u8>, number: u64, order: Order) {
    let kind = match order {
        Order::Terminate => b'T',
        Order::Kill => b'K',
        Order::Sweep => b'W',
    };
    header(message, number, kind);
}

/// Replaces what is in `message`.
pub(super) fn encode_report(message: &mut Vec<u8>, number: u64, report: Report) {
    match report {
        Report::Ready(in_force) => {
            header(message, number, b'R');
            message.push(in_force.to_byte());
        }
        Report::Started { pid } => {
            header(message, number, b'S');
            message.extend(pid.to_le_bytes());
        }
        Report::SpawnFailed { errno } => {
            header(message, number, b'F');
            message.extend(errno.to_le_bytes());
        }
        Report::OverLimit(Excess { of, measured, limit }) => {
            header(message, number, b'L');
            message.push(match of {
                Limited::Memory => 0,
                Limited::Processes => 1,
            });
            message.extend(measured.to_le_bytes());
            message.extend(limit.to_le_bytes());
        }
        Report::Exited { exit, usage, left } => {
            header(message, number, b'X');
            let (by_signal, value) = match exit {
                Exit::Code(code) => (0, code),
                Exit::Signal(signal) => (1, signal),
            };
            message.push(by_signal);
            message.extend(value.to_le_bytes());
            message.extend(micros(usage.wall).to_le_bytes());
            message.extend(micros(usage.cpu_user).to_le_bytes());
            message.extend(micros(usage.cpu_system).to_le_bytes());
            message.extend(usage.max_rss_bytes.to_le_bytes());
            message.push(u8::from(left));
        }
        Report::Clean => header(message, number, b'C'),
    }
}

/// The job's number and the request, or `None` for what is no request.
pub(super) fn decode_request(message: &[u8]) -> Option<(u64, Request<'_>)> {
    let mut reader = Reader(message);
    let number = reader.u64()?;
    let request = match reader.u8()? {
        b'J' => {
            let program = reader.path()?;
            let directory = reader.path()?;
            let count = reader.u32()? as usize;
            // Each variable takes at least the eight bytes of its lengths: a count cannot ask for more memory than
            // the message had bytes.
            let mut environment = Vec::with_capacity(count.min(reader.0.len() / 8));
            for _ in 0..count {
                environment.push((reader.text()?, reader.text()?));
            }
            Request::Start(Start { program, directory, environment })
        }
        b'T' => Request::Order(Order::Terminate),
        b'K' => Request::Order(Order::Kill),
        b'W' => Request::Order(Order::Sweep),
        _ => return None,
    };
    reader.end(())?;
    Some((number, request))
}

/// The job's number and the report, or `None` for what is no report.
pub(super) fn decode_report(message: &[u8]) -> Option<(u64, Report)> {
    let mut reader = Reader(message);
    let number = reader.u64()?;
    let report = match reader.u8()? {
        b'R' => Report::Ready(InForce::from_byte(reader.u8()?)),
        b'S' => Report::Started { pid: reader.i32()? },
        b'F' => Report::SpawnFailed { errno: reader.i32()? },
        b'L' => {
            let of = match reader.u8()? {
                0 => Limited::Memory,
                1 => Limited::Processes,
                _ => return None,
            };
            Report::OverLimit(Excess { of, measured: reader.u64()?, limit: reader.u64()? })
        }
        b'X' => {
            let by_signal = reader.bool()?;
            let value = reader.i32()?;
            Report::Exited {
                exit: if by_signal { Exit::Signal(value) } else { Exit::Code(value) },
                usage: Usage {
                    wall: Duration::from_micros(reader.u64()?),
                    cpu_user: Duration::from_micros(reader.u64()?),
                    cpu_system: Duration::from_micros(reader.u64()?),
                    max_rss_bytes: reader.u64()?,
                },
                left: reader.bool()?,
            }
        }
        b'C' => Report::Clean,
        _ => return None,
    };
    reader.end(())?;
    Some((number, report))
}

/// A job's number and the kind of message.
const HEADER: usize = 9;

fn header(message: &mut Vec<u8>, number: u64, kind: u8) {
    message.clear();
    message.extend(number.to_le_bytes());
    message.push(kind);
}

fn put_bytes(message: &mut Vec<u8>, bytes: &[u8]) {
    put_length(message, bytes.len());
    message.extend(bytes);
}

/// Lengths are below [`MAX_MESSAGE`]; one that is not makes a message that is refused, not one that is misread.
fn put_length(message: &mut Vec<u8>, length: usize) {
    message.extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Takes from the front of what is left.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_le_bytes)
    }

    fn bool(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn text(&mut self) -> Option<&'a OsStr> {
        let length = self.u32()? as usize;
        self.bytes(length).map(OsStr::from_bytes)
    }

    fn path(&mut self) -> Option<&'a Path> {
        self.text().map(Path::new)
    }

    /// `value`, if nothing is left over.
    fn end<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn report() -> impl Strategy<Value = Report> {
        let exit = prop_oneof![any::<i32>().prop_map(Exit::Code), any::<i32>().prop_map(Exit::Signal)];
        let usage =
            (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(wall, user, system, max_rss_bytes)| {
                Usage {
                    wall: Duration::from_micros(wall),
                    cpu_user: Duration::from_micros(user),
                    cpu_system: Duration::from_micros(system),
                    max_rss_bytes,
                }
            });
        prop_oneof![
            (0..16_u8).prop_map(|byte| Report::Ready(InForce::from_byte(byte))),
            any::<i32>().prop_map(|pid| Report::Started { pid }),
            any::<i32>().prop_map(|errno| Report::SpawnFailed { errno }),
            (any::<bool>(), any::<u64>(), any::<u64>()).prop_map(|(memory, measured, limit)| {
                let of = if memory { Limited::Memory } else { Limited::Processes };
                Report::OverLimit(Excess { of, measured, limit })
            }),
            (exit, usage, any::<bool>()).prop_map(|(exit, usage, left)| Report::Exited { exit, usage, left }),
            Just(Report::Clean),
        ]
    }

    proptest! {
        #[test]
        fn a_job_is_read_as_it_was_written(
            number: u64,
            program in ".*",
            directory in ".*",
            environment in prop::collection::vec((".*", ".*"), 0..8),
        ) {
            let job = Job { program: Path::new(&program), directory: Path::new(&directory), environment: &environment };
            let mut message = vec![1, 2, 3];
            encode_start(&mut message, number, &job);
            prop_assert_eq!(message.len(), start_size(&job));
            let expected = Start {
                program: Path::new(&program),
                directory: Path::new(&directory),
                environment: environment.iter().map(|(n, v)| (OsStr::new(n), OsStr::new(v))).collect(),
            };
            prop_assert_eq!(decode_request(&message), Some((number, Request::Start(expected))));
            // Nothing shorter and nothing longer is taken for it.
            for length in 0..message.len() {
                prop_assert_eq!(decode_request(&message[..length]), None);
            }
            message.push(0);
            prop_assert_eq!(decode_request(&message), None);
        }

        #[test]
        fn a_report_is_read_as_it_was_written(number: u64, report in report()) {
            let mut message = Vec::new();
            encode_report(&mut message, number, report);
            prop_assert!(message.len() <= MAX_SHORT);
            prop_assert_eq!(decode_report(&message), Some((number, report)));
            for length in 0..message.len() {
                prop_assert_eq!(decode_report(&message[..length]), None);
            }
        }

        #[test]
        fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..256), kind in "[JTKWRSFLXC]") {
            let _ = decode_request(&bytes);
            let _ = decode_report(&bytes);
            let mut known = bytes;
            if let Some(byte) = known.get_mut(8) {
                *byte = kind.as_bytes()[0];
            }
            let _ = decode_request(&known);
            let _ = decode_report(&known);
        }
    }

    #[test]
    fn orders_are_read_as_they_were_written() {
        for order in [Order::Terminate, Order::Kill, Order::Sweep] {
            let mut message = Vec::new();
            encode_order(&mut message, 7, order);
            assert!(message.len() <= MAX_SHORT);
            assert_eq!(decode_request(&message), Some((7, Request::Order(order))));
            assert_eq!(decode_report(&message), None);
        }
    }

    #[test]
    fn a_count_that_lies_asks_for_no_memory() {
        let mut message = Vec::new();
        header(&mut message, 1, b'J');
        put_bytes(&mut message, b"/bin/true");
        put_bytes(&mut message, b"/");
        message.extend(u32::MAX.to_le_bytes());
        assert_eq!(decode_request(&message), None);
    }
}
