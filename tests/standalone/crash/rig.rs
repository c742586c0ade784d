//! An operator that is killed at chosen points, and what was in its database then.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use proxy_operator::model::proxy::Proxy;
use proxy_operator::store::local::database::Database;
use proxy_operator_tests::interceptor::{Asked, Fate, Interceptor, Onlooker};
use proxy_operator_tests::kube_lab::provider_of;
use proxy_operator_tests::lab::Lab;
use proxy_operator_tests::process::PATIENCE;
use proxy_operator_tests::strace::Tracer;
use reqwest::StatusCode;
use serde_json::Value;

use super::effect::{Effect, Moment, Written};
use super::scenario::Scenario;

/// What the operator logs: each write to its database too.
const LOG: &str = "info,proxy_operator=debug,proxy_operator::store=trace";
/// Writes of a scenario are fewer.
const WRITES: usize = 60;

/// Tables of the database that say what an object is.
const OBJECTS: [&str; 2] = ["proxies", "providers"];
/// All tables.
const TABLES: [&str; 7] = ["meta", "keys", "proxies", "providers", "buried", "abandoned", "leases"];

/// The rig.
pub struct Rig {
    pub lab: Lab,
    /// Where the operator was killed.
    pub points: Vec<(Effect, Moment)>,
    way: Interceptor,
    cloud: Arc<ToCloud>,
    names: usize,
    /// Proxies that were deleted.
    pub deleted: Vec<String>,
    /// Proxies that are Ready and that nothing happened to.
    pub spare: Vec<String>,
    /// What was in the database when the operator was last killed.
    pub killed_with: Rows,
}

/// Where a round kills.
#[derive(Clone, Debug)]
pub enum At {
    /// Right before one thread's n-th call, on these files (none: on whatever).
    Call(&'static str, usize, Vec<PathBuf>),
    /// At an effect on the cloud.
    Cloud(Effect, Moment),
}

/// How a round ended.
pub struct Hit {
    /// What it was about, and how that was when it began.
    name: String,
    object: Value,
    /// Writes that were under way.
    writes: Vec<Written>,
    /// Calls on the database until then.
    calls: Vec<String>,
}

/// The rows of the database, by table and key.
pub type Rows = HashMap<&'static str, HashMap<String, Vec<u8>>>;

/// The way to the cloud.
#[derive(Default)]
struct ToCloud(Mutex<Gate>);

#[derive(Default)]
struct Gate {
    armed: Option<(Effect, Moment)>,
    /// The operator counts as dead: nothing of it passes.
    closed: bool,
}

impl ToCloud {
    fn gate(&self) -> std::sync::MutexGuard<'_, Gate> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn passes(&self, effect: Option<Effect>, moment: Moment) -> Fate {
        let mut gate = self.gate();
        if effect.is_some_and(|effect| gate.armed == Some((effect, moment))) {
            *gate = Gate { armed: None, closed: true };
        }
        if gate.closed { Fate::IsHeld } else { Fate::Passes }
    }
}

#[async_trait]
impl Onlooker for ToCloud {
    async fn asked(&self, asked: &Asked) -> Fate {
        let effect = Effect::on_cloud(asked);
        assert!(effect.is_some() || !asked.changes(), "no effect is called {} {}", asked.method, asked.path);
        self.passes(effect, Moment::Before)
    }

    async fn answered(&self, asked: &Asked, status: StatusCode, _: &Value) -> Fate {
        self.passes(Effect::on_cloud(asked).filter(|_| status.is_success()), Moment::After)
    }
}

impl Rig {
    /// Starts an operator without any Proxy.
    pub async fn start() -> Self {
        let mut lab = Lab::without_provider().await;
        lab.log(LOG);
        let cloud = Arc::new(ToCloud::default());
        let way = Interceptor::start(lab.cloud_url(), None, cloud.clone()).await;
        let mut this = Self {
            lab,
            points: vec![],
            way,
            cloud,
            names: 0,
            deleted: vec![],
            spare: vec![],
            killed_with: Rows::new(),
        };
        this.restart().await;
        this
    }

    /// A Provider of the cloud, behind the interceptor. Calls are short, since after a crash what they may still do is
    /// waited for.
    pub fn provider(&self, name: &str) -> String {
        provider_of(name, "sandbox", &self.way.url, "  limits: {callTimeout: 2s}\n")
    }

    /// A name that no object had.
    pub fn new_name(&mut self) -> String {
        self.names += 1;
        format!("p{}", self.names)
    }

    /// Kills the operator and starts it anew.
    pub async fn restart(&mut self) {
        self.lab.take_operator().kill();
        self.lab.start_operator().await;
    }

    /// The file of the database.
    pub fn database(&self) -> PathBuf {
        self.lab.path("data/state.redb")
    }

    /// Goes through a scenario, killed at each of its points once.
    pub async fn go_through(&mut self, scenario: Scenario) {
        for (at, effect, moment) in scenario.fixed(&self.database()) {
            assert!(self.round(scenario, &at).await.is_some(), "{scenario:?}: no kill at {at:?}");
            self.points.push((effect, moment));
        }
        if !scenario.writes() {
            return;
        }
        let files = vec![self.database(), self.database().with_extension("redb.new")];
        let mut before = None;
        for number in 1..WRITES {
            // At the sync all of a write is in the file, and nobody was told.
            let at = At::Call("fdatasync", number, files.clone());
            let Some(after) = self.round(scenario, &at).await else { return };
            let before = before.get_or_insert_with(|| after.object.clone());
            let of_it = |write: &&Written| {
                !OBJECTS.contains(&write.table.as_str()) || write.key.rsplit('/').next() == Some(&after.name)
            };
            let mut effects: Vec<Effect> =
                after.writes.iter().filter(of_it).map(|write| self.name(scenario, write, before)).collect();
            if effects.is_empty() && scenario == Scenario::FirstStart {
                effects.push(Effect::DatabaseMade);
            }
            let first = first_write(&after.calls, number);
            println!("{scenario:?}, write {number}: {effects:?}, from call {first} on");
            self.points.extend(effects.iter().map(|&effect| (effect, Moment::After)));
            let at = At::Call("pwrite64", first, files.clone());
            if self.round(scenario, &at).await.is_some() {
                self.points.extend(effects.iter().map(|&effect| (effect, Moment::Before)));
            }
        }
        panic!("{scenario:?} goes on writing");
    }

    /// What a write did, from what was in the database when the operator was killed.
    fn name(&self, scenario: Scenario, written: &Written, before: &mut Value) -> Effect {
        let row = self.killed_with.get(written.table.as_str()).and_then(|rows| rows.get(&written.key));
        let now = row.and_then(|row| serde_json::from_slice(row).ok()).unwrap_or(Value::Null);
        let effect = Effect::of(written, scenario == Scenario::Renew, &now, before);
        if OBJECTS.contains(&written.table.as_str()) {
            *before = now;
        }
        effect.unwrap_or_else(|| panic!("no effect is called {written:?}"))
    }

    /// Begins the scenario and kills the operator at this point; then starts it anew, and all has to end well. None when it
    /// went through without being killed.
    async fn round(&mut self, scenario: Scenario, at: &At) -> Option<Hit> {
        let name = self.prepare(scenario).await;
        let object = self.object(&name).await;
        let logged = self.lab.operator().log().len();
        let tracer = match at {
            At::Call(call, nth, files) => {
                let also: &[&str] = if *call == "fdatasync" { &["pwrite64"] } else { &[] };
                let record = self.lab.path("calls");
                Some(Tracer::kill_at(self.lab.operator().id(), call, *nth, also, files, &record))
            }
            At::Cloud(effect, moment) => {
                self.cloud.gate().armed = Some((*effect, *moment));
                None
            }
        };
        let act = self.begin(scenario, &name).await;
        let until = Instant::now() + PATIENCE;
        let killed = loop {
            if self.cloud.gate().closed || self.lab.operator_has_ended() {
                break true;
            }
            let since = self.lab.operator().log().split_off(logged);
            if self.is_over(scenario, &name, &act, &since).await {
                break false;
            }
            assert!(Instant::now() < until, "{scenario:?} at {at:?} does not end:\n{since}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let calls = tracer.map(Tracer::end).unwrap_or_default();
        if !killed {
            *self.cloud.gate() = Gate::default();
            self.passed(scenario, &name, act).await;
            return None;
        }
        let operator = self.lab.take_operator();
        let writes = under_way(&operator.log()[logged..]);
        operator.kill();
        *self.cloud.gate() = Gate::default();
        let answer = act.answer().await;
        self.killed_with = self.rows();
        self.lab.start_operator().await;
        self.ends(scenario, &format!("{scenario:?} at {at:?}"), &name, answer).await;
        self.nothing_is_left_beside_manifests();
        Some(Hit { name, object, writes, calls })
    }

    /// All rows of the database, while no operator has it open.
    pub fn rows(&self) -> Rows {
        if !self.database().exists() {
            return Rows::new();
        }
        // Opening it mends what a kill left: that is the operator's to do.
        let copy = self.lab.path("copy.redb");
        fs::copy(self.database(), &copy).unwrap();
        let database = Database::open(&copy).unwrap();
        let rows = TABLES.iter().map(|&table| (table, database.all(table).unwrap().into_iter().collect())).collect();
        drop(database);
        fs::remove_file(&copy).unwrap();
        rows
    }

    fn nothing_is_left_beside_manifests(&self) {
        let names = fs::read_dir(self.lab.path("manifests")).unwrap().map(|e| e.unwrap().file_name());
        let rest: Vec<_> = names.filter(|name| name.to_string_lossy().ends_with(".new")).collect();
        assert!(rest.is_empty(), "{rest:?} is left");
    }

    /// What was deleted is gone, each Proxy has its machine, and there is no other.
    pub async fn ends_clean(&self) {
        self.lab
            .wait("there is one machine for each Proxy, and nothing of what was deleted", async |lab| {
                let proxies = lab.proxies().await;
                let is_deleted = |p: &Proxy| self.deleted.iter().any(|name| p.metadata.name.as_ref() == Some(name));
                let machines = lab.machines().await;
                let mut owners: Vec<&str> = machines.iter().filter_map(|m| m["owner"]["proxyUid"].as_str()).collect();
                let mut uids: Vec<&str> = proxies.iter().filter_map(|p| p.metadata.uid.as_deref()).collect();
                owners.sort_unstable();
                uids.sort_unstable();
                let providers: Vec<Value> = lab.try_objects("providers").await?;
                let parted = providers.iter().all(|p| p["metadata"]["deletionTimestamp"].is_null());
                (owners == uids && parted && !proxies.iter().any(is_deleted)).then_some(())
            })
            .await;
    }
}

/// The first call that belongs to the write with this number, counted as its thread calls.
fn first_write(calls: &[String], number: usize) -> usize {
    let thread = |call: &str| call.split_whitespace().next().map(str::to_owned);
    let killed = calls.iter().rev().find(|call| call.contains("fdatasync(")).and_then(|call| thread(call));
    let mut own = calls.iter().filter(|call| thread(call) == killed);
    let (mut syncs, mut first) = (1, 1);
    while syncs < number
        && let Some(call) = own.next()
    {
        syncs += usize::from(call.contains("fdatasync("));
        first += usize::from(call.contains("pwrite64("));
    }
    first
}

/// The writes that a log ends with, which were begun and not done.
fn under_way(log: &str) -> Vec<Written> {
    let mut writes = vec![];
    for line in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let text = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
        match line["message"].as_str() {
            Some("writing") => {
                writes.push(Written { table: text("table"), key: text("key"), change: text("change") });
            }
            Some("written") => writes.clear(),
            _ => {}
        }
    }
    writes
}
