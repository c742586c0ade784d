//! Events, through a recorder: what is told twice in a while is counted by it and not written anew.

use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::runtime::events::{Event as KubeEvent, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use tokio::sync::mpsc;

use super::KubeStore;
use super::cache::beating;
use crate::model::condition::truncate;
use crate::model::pulse::PULSE;
use crate::store::recent::Recent;
use crate::store::{Event, Regarding, Severity, Store};

/// Events that wait to be written; over it they are dropped, and said in the log all the same.
const QUEUE: usize = 1024;
/// Events after which a recorder is replaced by a new one: each keeps all that it wrote in the last minutes, and looks at all
/// of them to write another.
const REMEMBERED: usize = 256;
/// The API refuses longer notes.
const NOTE_BYTES: usize = 1000;

pub(super) struct Events {
    queue: mpsc::Sender<(KubeEvent, ObjectReference)>,
    recent: Recent,
    namespace: String,
}

impl Events {
    pub fn start(client: Client, namespace: &str) -> Self {
        let (queue, mut waiting) = mpsc::channel::<(KubeEvent, ObjectReference)>(QUEUE);
        let instance = std::env::var("HOSTNAME").ok();
        tokio::spawn(async move {
            let reporter = Reporter { controller: "proxy-operator".into(), instance };
            let mut recorder = Recorder::new(client.clone(), reporter.clone());
            let mut written = 0;
            let beat = PULSE.of("events");
            while let Some((event, regarding)) = beating(&beat, waiting.recv()).await {
                written += 1;
                if written % REMEMBERED == 0 {
                    recorder = Recorder::new(client.clone(), reporter.clone());
                }
                // A failed event never fails what it tells of.
                if let Err(error) = beating(&beat, recorder.publish(&event, &regarding)).await {
                    tracing::debug!(reason = %event.reason, %error, "an event could not be written");
                }
            }
        });
        Self { queue, recent: Recent::default(), namespace: namespace.to_owned() }
    }

    pub fn tell(&self, event: Event, store: &KubeStore) {
        if let Some(regarding) = self.reference(&event.regarding, store) {
            let written = KubeEvent {
                type_: if event.severity == Severity::Normal { EventType::Normal } else { EventType::Warning },
                reason: truncate(&event.reason, 128),
                note: Some(truncate(&event.message, NOTE_BYTES)),
                action: "Reconcile".into(),
                secondary: None,
            };
            if self.queue.try_send((written, regarding)).is_err() {
                tracing::debug!("too many events wait; one is dropped");
            }
        }
        self.recent.record(event);
    }

    pub fn recent(&self) -> Vec<Event> {
        self.recent.all()
    }

    /// The object that an event is about; none when it is gone meanwhile, as with the last word about it.
    fn reference(&self, regarding: &Regarding, store: &KubeStore) -> Option<ObjectReference> {
        match regarding {
            Regarding::Proxy(key) => store.proxy(key).map(|proxy| proxy.object_ref(&())),
            Regarding::Provider(name) => store.provider(name).map(|provider| provider.object_ref(&())),
            Regarding::Manifest(_) => None,
            Regarding::ConfigMap(name) => Some(ObjectReference {
                api_version: Some(ConfigMap::api_version(&()).into()),
                kind: Some(ConfigMap::kind(&()).into()),
                namespace: Some(self.namespace.clone()),
                name: Some(name.clone()),
                ..ObjectReference::default()
            }),
        }
    }
}
