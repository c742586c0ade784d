//! How much a guest that only computes delays others on its thread.

use std::time::{Duration, Instant};

use proxy_operator_tests::plugins::{Setup, identity, loaded};

use super::table::{Table, Target, millis, quantile};

/// What another task on the thread waits for.
const TIMER: Duration = Duration::from_millis(10);
/// The guest's, in seconds.
const BUSY: u64 = 3;

/// On a runtime of one thread, a guest in a busy loop and a task that sleeps again and again; how late the latter wakes.
pub fn measure(table: &mut Table) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut late = runtime.block_on(async {
        let handle = Setup::new().call_timeout(BUSY).bind(loaded("loop-get").await);
        let guest = tokio::spawn(async move { handle.get(&identity("a", "here")).await });
        let mut late = vec![];
        while !guest.is_finished() {
            let slept = Instant::now();
            tokio::time::sleep(TIMER).await;
            late.push(slept.elapsed().saturating_sub(TIMER));
        }
        let ended = guest.await.expect("no panic").expect_err("it never answers");
        assert!(ended.message.contains("still computing"), "{}", ended.message);
        late
    });
    let what = format!("delay of a {} ms timer beside a busy guest, one thread", TIMER.as_millis());
    // The guest is stopped at each tick of 10 ms, so one or two of them.
    table.row(&what, millis(quantile(&mut late, 0.5)), "ms", Target::Under(20.0));
    table.row("  the worst of them", millis(quantile(&mut late, 1.0)), "ms", Target::None);
}
