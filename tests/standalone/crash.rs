//! A standalone operator is killed before and after each thing of it that lasts, and started anew: nothing is lost, and
//! nothing is there twice.

mod effect;
mod rig;
mod scenario;
mod steps;

use std::collections::HashSet;

use proxy_operator_tests::strace::can_trace;
use strum::VariantArray;
use tokio::runtime::Runtime;

use effect::{Effect, Moment};
use rig::Rig;
use scenario::Scenario;

/// Operators that share the scenarios.
const RIGS: usize = 2;
/// How often those scenarios are gone through again whose writes come in either order.
const AGAIN: usize = 12;
/// Names the only scenario to go through.
const ONLY: &str = "STANDALONE_SCENARIO";

#[test]
fn a_kill_at_any_effect_of_a_standalone_operator_loses_nothing_and_makes_nothing_twice() {
    if !can_trace() {
        return;
    }
    let only = std::env::var(ONLY).ok();
    let chosen = |scenario: &Scenario| only.as_ref().is_none_or(|only| *only == format!("{scenario:?}"));
    let scenarios: Vec<_> = Scenario::VARIANTS.iter().copied().filter(chosen).collect();
    let turn = |turn| {
        let mine: Vec<_> = scenarios.iter().copied().skip(turn).step_by(RIGS).collect();
        std::thread::spawn(move || Runtime::new().unwrap().block_on(run(mine)))
    };
    let turns: Vec<_> = (0..RIGS).map(turn).collect();
    let done: Vec<Vec<(Effect, Moment)>> = turns.into_iter().map(|turn| turn.join().unwrap()).collect();
    let mut points = done.concat();
    // What happens beside each other comes in either order, so that the next round may meet the one write again instead of
    // the other.
    for _ in 0..AGAIN {
        let again: Vec<_> = Scenario::VARIANTS
            .iter()
            .copied()
            .filter(|scenario| missed(&points).iter().any(|(effect, _)| scenario.varies_with(*effect)))
            .collect();
        if only.is_some() || again.is_empty() {
            break;
        }
        points.extend(Runtime::new().unwrap().block_on(run(again)));
    }
    let missed = missed(&points);
    assert!(only.is_some() || missed.is_empty(), "no kill was at {missed:?}");
    println!("COUNT: {} crash points", points.len());
}

/// Where nobody was killed yet.
fn missed(points: &[(Effect, Moment)]) -> Vec<(Effect, Moment)> {
    let visited: HashSet<_> = points.iter().copied().collect();
    let all = Effect::VARIANTS.iter().flat_map(|&effect| Moment::VARIANTS.iter().map(move |&moment| (effect, moment)));
    all.filter(|point| !visited.contains(point)).collect()
}

/// Takes an operator through these scenarios, again and again until nothing of them is left to be killed at; answers where
/// it was killed.
async fn run(scenarios: Vec<Scenario>) -> Vec<(Effect, Moment)> {
    let mut rig = Rig::start().await;
    for scenario in scenarios {
        let began = std::time::Instant::now();
        let before = rig.points.len();
        rig.go_through(scenario).await;
        println!("{scenario:?}: {} points, {} ms", rig.points.len() - before, began.elapsed().as_millis());
    }
    rig.ends_clean().await;
    rig.points
}
