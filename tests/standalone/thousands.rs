//! Five thousand Proxies on one machine: they come, one of them changes, one goes, and a restart makes nothing.

use std::fs;
use std::time::{Duration, Instant};

use proxy_operator_tests::lab::{Lab, condition, proxy};

use crate::kit::at;

/// `STANDALONE_PROXIES` sets another number.
const PROXIES: usize = 5_000;
/// Nothing that goes on takes longer.
const PATIENCE: Duration = Duration::from_secs(600);

fn proxies() -> usize {
    std::env::var("STANDALONE_PROXIES").ok().and_then(|n| n.parse().ok()).unwrap_or(PROXIES)
}

/// Waits for what may take long; answers for how long it did.
async fn timed(what: &str, lab: &Lab, began: Instant, mut condition: impl AsyncFnMut(&Lab) -> bool) -> String {
    while !condition(lab).await {
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    format!("{what}: {:.1} s", began.elapsed().as_secs_f64())
}

/// By the gauge: lists of thousands, asked for all the time, would be most of what goes on.
async fn all_ready(lab: &Lab) -> bool {
    let wanted = proxies().to_string();
    let is_it = |line: &str| {
        line.starts_with("proxy_operator_proxies{")
            && line.contains("ready=\"true\"")
            && line.rsplit(' ').next() == Some(&wanted)
    };
    lab.metrics().await.lines().any(is_it)
}

async fn creates(lab: &Lab) -> u64 {
    let page = lab.metrics().await;
    let of_create =
        |line: &&str| line.starts_with("proxy_operator_provider_calls_total{") && line.contains("function=\"create\"");
    page.lines().filter(of_create).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_are_kept_and_a_change_of_one_is_a_small_one() {
    let number = proxies();
    let mut lab = Lab::of_cloud(&["--capacity", &(number + 1).to_string()]).await;
    lab.log("info");
    lab.take_operator().kill();
    lab.start_operator().await;
    lab.put("provider.yaml", &lab.provider("demo", ""));
    lab.wait_provider("demo", |p| condition(p).is_some_and(|c| c.reason == "Ready")).await;
    let fleet = lab.path("fleet.yaml");
    let slow = ", healthCheck: {interval: 5m}";
    let one = |n: usize, more: &str| proxy(&format!("p{n:05}"), &format!("{slow}{more}"));
    fs::write(&fleet, (0..number).map(|n| format!("---\n{}", one(n, ""))).collect::<String>()).unwrap();
    let fleet = fleet.display().to_string();
    let mut figures = vec![];

    let began = Instant::now();
    let (created, _) = at(&lab, 0, &["apply", "-f", &fleet]);
    assert_eq!(created.lines().filter(|line| line.ends_with(" created")).count(), number);
    figures.push(format!("apply: {:.1} s", began.elapsed().as_secs_f64()));
    figures.push(timed("all Ready", &lab, began, all_ready).await);
    assert_eq!(lab.machines().await.len(), number);

    let began = Instant::now();
    let (unchanged, _) = at(&lab, 0, &["apply", "-f", &fleet]);
    assert_eq!(unchanged.lines().filter(|line| line.ends_with(" unchanged")).count(), number);
    figures.push(format!("apply of the same: {:.1} s", began.elapsed().as_secs_f64()));
    let began = Instant::now();
    assert_eq!(at(&lab, 0, &["get", "proxies"]).0.lines().count(), number + 1);
    figures.push(format!("get: {:.1} s", began.elapsed().as_secs_f64()));

    let began = Instant::now();
    lab.put("proxy-default-p00000.yaml", &one(0, "").replace("name: p00000", "name: p00000, labels: {of: one}"));
    let labelled = async |lab: &Lab| lab.proxy("p00000").await.is_some_and(|p| p.metadata.labels.is_some());
    figures.push(timed("one edited", &lab, began, labelled).await);
    let began = Instant::now();
    fs::remove_file(lab.path("manifests/proxy-default-p00001.yaml")).unwrap();
    let gone = async |lab: &Lab| lab.proxy("p00001").await.is_none();
    figures.push(timed("one removed", &lab, began, gone).await);
    lab.put("proxy-default-p00001.yaml", &one(1, ""));
    timed("it is there again", &lab, Instant::now(), all_ready).await;

    lab.take_operator().kill();
    let began = Instant::now();
    lab.start_operator().await;
    figures.push(timed("restart", &lab, began, all_ready).await);
    let peak = lab.operator().peak() >> 20;
    timed("all were looked at", &lab, Instant::now(), async |lab| {
        lab.metrics()
            .await
            .lines()
            .any(|line| line.starts_with("workqueue_depth{name=\"proxy\"") && line.ends_with(" 0"))
    })
    .await;
    assert_eq!(creates(&lab).await, 0, "a restart makes nothing");
    assert_eq!(lab.machines().await.len(), number);
    println!("COUNT: {number} Proxies; {}; {peak} MiB at most", figures.join("; "));
}
