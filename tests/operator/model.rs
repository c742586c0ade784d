//! Random schedules against a simulated backend: calls that fail or land late, instances that vanish, managers that crash,
//! freeze and wake up as second leaders, users who edit and delete. Once that stops, one instance serves for each Proxy, or
//! none is left, and what nobody names is something that collection finds.

mod backend;
mod manager;
mod passes;
mod world;

use self::world::World;

/// Schedules of a run; the long form has a larger count.
const SCHEDULES: u64 = 10_000;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn whatever_goes_wrong_one_instance_serves_in_the_end_or_none_is_left() {
    if let Some(seed) = number("MODEL_SEED") {
        World::new(seed, true).run();
        return;
    }
    let schedules = number("MODEL_SCHEDULES").unwrap_or(SCHEDULES);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let part = |of: u64| {
        let mut sums = [0; 3];
        for seed in (of..schedules).step_by(threads as usize) {
            let mut world = World::new(seed, false);
            world.run();
            sums = [sums[0] + world.crashes, sums[1] + world.leader_changes, sums[2] + world.collected];
        }
        sums
    };
    let [crashes, leaders, collected] = std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads).map(|of| scope.spawn(move || part(of))).collect();
        let sums = parts.into_iter().map(|part| part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        sums.fold([0; 3], |a, b| [a[0] + b[0], a[1] + b[1], a[2] + b[2]])
    });
    assert!(crashes > 0 && leaders > 0 && collected > 0, "{crashes} crashes, {leaders} leaders, {collected} orphans");
    println!("COUNT: {schedules} schedules of the model");
    println!("COUNT: {leaders} leader changes in the model, {crashes} crashes, {collected} orphans found");
}
