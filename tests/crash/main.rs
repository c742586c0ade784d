//! The operator is killed before and after each effect that it has outside of itself, and started anew: all ends clean.

mod cluster;
mod effect;
mod points;
mod replicas;
mod scenario;

use strum::VariantArray;
use tokio::runtime::Runtime;

use cluster::Cluster;
use effect::Effect;
use points::Moment;

/// API servers that share the points: an installation has a cluster of its own, so that one server serves one operator.
const CLUSTERS: usize = 2;

#[test]
fn a_kill_before_or_after_any_effect_leaves_nothing_behind_and_makes_nothing_twice() {
    let all: Vec<(Effect, Moment)> = Effect::VARIANTS
        .iter()
        .flat_map(|&effect| Moment::VARIANTS.iter().map(move |&moment| (effect, moment)))
        .collect();
    let turn = |turn| {
        let mine: Vec<_> = all.iter().copied().skip(turn).step_by(CLUSTERS).collect();
        std::thread::spawn(move || Runtime::new().unwrap().block_on(run(mine)))
    };
    let turns: Vec<_> = (0..CLUSTERS).map(turn).collect();
    let done: Option<Vec<usize>> = turns.into_iter().map(|turn| turn.join().unwrap()).collect();
    let Some(done) = done else { return };
    let points: usize = done.iter().sum();
    assert_eq!(points, all.len());
    println!("COUNT: {points} crash points");
}

/// Takes a cluster through these points; answers how many there were. None where there is no API server to be had.
async fn run(points: Vec<(Effect, Moment)>) -> Option<usize> {
    let mut cluster = Cluster::start().await?;
    for (number, &(effect, moment)) in points.iter().enumerate() {
        let began = std::time::Instant::now();
        cluster.crash_at(effect, moment, &format!("point-{number}")).await;
        println!("{effect:?} {moment:?}: {} ms", began.elapsed().as_millis());
    }
    cluster.ends_clean().await;
    Some(points.len())
}
