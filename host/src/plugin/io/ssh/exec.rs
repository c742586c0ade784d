//! One command on a channel of its own, from opening it until the server has closed it.
//!
//! It runs as a task beside the guest's call: a call that is dropped cannot wait, yet its channel must be closed and its
//! remote process ended before another command takes its place.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use russh::client::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Sig};
use tokio::sync::oneshot;
use tokio::time::{Instant, error::Elapsed, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::pool::Slot;
use super::{Account, Material};
use crate::plugin::bindings::crawl::provider::faults::{Fault, FaultKind};
use crate::plugin::bindings::crawl::provider::ssh::{Ended, Output};
use crate::plugin::call::Progress;

/// Within this a server answers that a channel is open; one that does not is gone.
const OPEN: Duration = Duration::from_secs(10);
/// For a process to end after SIGTERM, and again after SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// Connections on which one command is tried; all but the last broke before it was sent.
const TRIES: usize = 3;

/// Whether a command has left for the server; known even after its call was dropped.
pub(super) struct Sent {
    flag: AtomicBool,
    /// Of a call that may change the backend: then a command that was sent has an unknown outcome until it has ended.
    progress: Option<Arc<Progress>>,
}

impl Sent {
    pub fn new(progress: Option<Arc<Progress>>) -> Self {
        Self { flag: AtomicBool::new(false), progress }
    }

    pub fn get(&self) -> bool {
        self.flag.load(Ordering::SeqCst)
    }

    /// Said before the first byte: nobody can say it afterwards when the call was dropped meanwhile.
    fn begin(&self) {
        self.flag.store(true, Ordering::SeqCst);
        if let Some(progress) = &self.progress {
            progress.sent();
        }
    }

    /// The server said that it did not run it, or nothing left.
    fn undo(&self) {
        self.flag.store(false, Ordering::SeqCst);
    }
}

/// One command.
pub(super) struct Run {
    pub account: Arc<Account>,
    pub material: Material,
    /// The quoted argv.
    pub line: String,
    pub stdin: Vec<u8>,
    /// Bytes kept of each stream.
    pub keep: usize,
    pub limit: Duration,
    pub sent: Arc<Sent>,
}

/// How the work on one connection came out.
enum Try {
    /// This is the answer.
    Done(Result<Output, Fault>),
    /// The connection broke before anything was sent.
    Lost,
    /// The server opens no further channel.
    Refused,
    /// Nobody waits for an answer.
    Dropped,
}

type Opening = BoxFuture<'static, Result<Result<Channel<Msg>, russh::Error>, Elapsed>>;

/// What is still to be closed at the server.
enum Left {
    Nothing,
    Opening(Opening),
    /// A channel in which a command runs.
    Running(ChannelReadHalf, ChannelWriteHalf<Msg>),
}

impl Run {
    /// Runs it. Dropping the future ends the command at the server.
    pub async fn answer(self) -> Result<Output, Fault> {
        let (tell, told) = oneshot::channel();
        let (stop, sent, account) = (CancellationToken::new(), self.sent.clone(), self.account.clone());
        let _stops = stop.clone().drop_guard();
        tokio::spawn(self.work(stop, tell));
        told.await.unwrap_or_else(|_| {
            let what = "the operator failed while it ran this command; please report it with the log";
            Err(account.fault(FaultKind::Other, sent.get(), what))
        })
    }

    async fn work(mut self, stop: CancellationToken, tell: oneshot::Sender<Result<Output, Fault>>) {
        let until = Instant::now() + self.limit;
        let (mut lost, mut refused) = (0, 0u32);
        loop {
            let slot = tokio::select! {
                slot = self.account.pool.slot(&self.account, &self.material, until) => slot,
                () = stop.cancelled() => return,
            };
            let slot = match slot {
                Ok(slot) => slot,
                Err(fault) => return drop(tell.send(Err(fault))),
            };
            let (outcome, left) = self.on(&slot, until, &stop).await;
            match outcome {
                Try::Done(answer) => {
                    // The guest need not wait until the remote process is dead.
                    let _ = tell.send(answer);
                    return finish(&self.account, slot, left).await;
                }
                Try::Dropped => return finish(&self.account, slot, left).await,
                Try::Lost => {
                    lost += 1;
                    self.account.pool.retire(&slot.connection);
                    if lost == TRIES {
                        let why = slot.connection.lost.why();
                        let what = format!("the connection was lost {TRIES} times before the command was sent: {why}");
                        return drop(tell.send(Err(self.account.fault(FaultKind::Lost, false, what))));
                    }
                }
                Try::Refused => {
                    refused += 1;
                    slot.shrink();
                    // The last place stays. Then it is not our own commands that fill the server, and it is asked again.
                    let pause = (Instant::now() + Duration::from_millis(50) * refused.min(20)).min(until);
                    tokio::select! {
                        () = sleep_until(pause) => {}
                        () = stop.cancelled() => return,
                    }
                    if pause == until {
                        let what = "the server opened no further session until the time limit passed (MaxSessions); the command was not sent";
                        return drop(tell.send(Err(self.account.fault(FaultKind::Busy, false, what))));
                    }
                }
            }
        }
    }

    /// Opens a channel and runs the command in it.
    async fn on(&mut self, slot: &Slot, until: Instant, stop: &CancellationToken) -> (Try, Left) {
        let connection = slot.connection.clone();
        // Not dropped half-way: the server would hold a channel that nobody closes.
        let mut opening: Opening =
            Box::pin(timeout(OPEN, async move { connection.handle.channel_open_session().await }));
        let opened = tokio::select! {
            opened = &mut opening => opened,
            () = sleep_until(until) => {
                let what = "the time limit passed while the server opened a channel; the command was not sent";
                return (Try::Done(Err(self.account.fault(FaultKind::TimedOut, false, what))), Left::Opening(opening));
            }
            () = stop.cancelled() => return (Try::Dropped, Left::Opening(opening)),
        };
        match opened {
            Ok(Ok(channel)) => self.exec(channel, until, stop).await,
            Ok(Err(russh::Error::ChannelOpenFailure(_))) => (Try::Refused, Left::Nothing),
            Ok(Err(_)) | Err(_) => (Try::Lost, Left::Nothing),
        }
    }

    async fn exec(&mut self, channel: Channel<Msg>, until: Instant, stop: &CancellationToken) -> (Try, Left) {
        self.sent.begin();
        if channel.exec(true, self.line.as_bytes()).await.is_err() {
            self.sent.undo();
            return (Try::Lost, Left::Nothing);
        }
        let (mut read, write) = channel.split();
        let outcome = self.follow(&mut read, &write, until, stop).await;
        match outcome {
            Followed::Ended(answer) => (Try::Done(answer), Left::Nothing),
            Followed::Running(answer) => (Try::Done(answer), Left::Running(read, write)),
            Followed::Dropped => (Try::Dropped, Left::Running(read, write)),
        }
    }

    /// Feeds a command and takes what it says, until it has ended or is not waited for any longer.
    async fn follow(
        &mut self,
        read: &mut ChannelReadHalf,
        write: &ChannelWriteHalf<Msg>,
        until: Instant,
        stop: &CancellationToken,
    ) -> Followed {
        let stdin = Bytes::from(std::mem::take(&mut self.stdin));
        let mut feed = pin!(async {
            // A command that reads no further closes its end; what it did not want is no fault.
            let _ = write.data_bytes(stdin).await;
            let _ = write.eof().await;
        });
        let mut got = Got { keep: self.keep, ..Got::default() };
        let (mut accepted, mut feeding) = (false, false);
        loop {
            tokio::select! {
                message = read.wait() => match message {
                    Some(ChannelMsg::Success) if !accepted => (accepted, feeding) = (true, true),
                    Some(ChannelMsg::Failure) if !accepted => {
                        self.sent.undo();
                        let what = "the server runs no commands for this account";
                        return Followed::Running(Err(self.account.fault(FaultKind::Denied, false, what)));
                    }
                    Some(ChannelMsg::Close) => return Followed::Ended(got.output(false).ok_or_else(|| {
                        let what = "the command ended, and the server told neither its exit status nor a signal";
                        self.account.fault(FaultKind::Lost, true, what)
                    })),
                    Some(message) => got.take(message),
                    None => return Followed::Ended(got.output(true).ok_or_else(|| {
                        let what = "the connection was lost while the command ran, whose outcome is unknown";
                        self.account.fault(FaultKind::Lost, true, what)
                    })),
                },
                () = &mut feed, if feeding => feeding = false,
                // What a command began in the background may hold its output open after it has ended.
                () = sleep_until(until) => return Followed::Running(got.output(true).ok_or_else(|| {
                    let what = format!("the command did not end within {} ms and was stopped", self.limit.as_millis());
                    self.account.fault(FaultKind::TimedOut, true, what)
                })),
                () = stop.cancelled() => return Followed::Dropped,
            }
        }
    }
}

/// How following a command came out.
enum Followed {
    /// Its channel is closed on both sides.
    Ended(Result<Output, Fault>),
    /// There is an answer, and the channel is still open.
    Running(Result<Output, Fault>),
    /// Nobody waits for an answer, and the channel is still open.
    Dropped,
}

/// What a command said so far.
#[derive(Default)]
struct Got {
    keep: usize,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    truncated: bool,
    ended: Option<Ended>,
}

impl Got {
    fn take(&mut self, message: ChannelMsg) {
        let (into, data) = match message {
            ChannelMsg::Data { data } => (&mut self.stdout, data),
            ChannelMsg::ExtendedData { data, ext: 1 } => (&mut self.stderr, data),
            ChannelMsg::ExitStatus { exit_status } => return self.ended = Some(Ended::Status(exit_status)),
            ChannelMsg::ExitSignal { signal_name, .. } => return self.ended = Some(Ended::Signal(name(signal_name))),
            _ => return,
        };
        // What is over is read and dropped: a command that nobody reads from would wait for ever.
        let room = self.keep - into.len();
        self.truncated |= data.len() > room;
        into.extend_from_slice(&data[..data.len().min(room)]);
    }

    /// None when the server told no end. `cut`: there may have been more.
    fn output(self, cut: bool) -> Option<Output> {
        let Self { stdout, stderr, truncated, ended, .. } = self;
        ended.map(|ended| Output { ended, stdout, stderr, truncated: truncated || cut })
    }
}

fn name(signal: Sig) -> String {
    match signal {
        Sig::Custom(name) => name,
        known => format!("{known:?}"),
    }
}

/// Ends what still runs, and gives the place free once the server has closed the channel. A connection on which it does not
/// takes no further commands: the server counts a channel until its process has ended.
async fn finish(account: &Account, slot: Slot, left: Left) {
    let closed = match left {
        Left::Nothing => true,
        Left::Opening(opening) => match opening.await {
            Ok(Ok(channel)) => channel.close().await.is_ok(),
            Ok(Err(_)) => true,
            Err(_) => false,
        },
        Left::Running(mut read, write) => end(&mut read, &write).await,
    };
    if !closed {
        account.pool.retire(&slot.connection);
    }
}

/// Ends a remote command and its channel; whether the server closed it.
async fn end(read: &mut ChannelReadHalf, write: &ChannelWriteHalf<Msg>) -> bool {
    for signal in [Sig::TERM, Sig::KILL] {
        // Read on while sending: the connection delivers nothing to others while this channel's messages wait.
        let closed = timeout(GRACE, async {
            let mut told = pin!(write.signal(signal));
            let mut telling = true;
            loop {
                tokio::select! {
                    message = read.wait() => if matches!(message, Some(ChannelMsg::Close) | None) { return },
                    _ = &mut told, if telling => telling = false,
                }
            }
        });
        if closed.await.is_ok() {
            return true;
        }
    }
    // Closing ends a process too that notices: its input ends, and its output breaks.
    let _ = timeout(GRACE, write.close()).await;
    false
}
