//! A real memory node on loopback, registered with a real registry, used over gRPC and bulk.

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use daemon::{ByteSize, Daemon, DrainConfig, Span as Text};
    use ids::{BlockHash, BlockIdx, BlockKey, Epoch, SessionId, ShardId, SliceChecksum, Span};
    use ids::{Incarnation, Tenant};
    use membership::{LeaseId, Registry, RegistryConfig, Service};
    use memory_node::{Config, Running, start};
    use proto::storage::{Commit, Committed, Locate, Located, Place, Placed, Release};
    use proto::{ChannelOptions, v1};
    use remote::{BlockReceipt, Grant, Granted, LocatedBlock, Reservation, ReserveRefused};
    use tokio::time::Instant;
    use tokio_stream::wrappers::TcpListenerStream;
    use tonic::Code;
    use tonic::transport::Channel;
    use transfer::tcp::{ClientLimits, TcpTransport};
    use transfer::{
        BulkAddress, Credential, Failure, HugePages, Refusal, Slab, Slot, SlotMut, SlotRef,
        Transport,
    };
    use xxhash_rust::xxh3::xxh3_64;

    const SLICES: usize = 4;

    struct Cluster {
        daemon: Daemon,
        node: Running,
        registry: Registry,
        channel: Channel,
        bulk: BulkAddress,
        transport: TcpTransport,
        slab: Slab,
    }

    impl Cluster {
        async fn start(change: impl FnOnce(&mut Config)) -> Self {
            let daemon = Daemon::new(DrainConfig::default());
            let registry = Registry::new(RegistryConfig::default(), LeaseId(1));
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut config = Config::default();
            config.membership.coordinator = listener.local_addr().unwrap().to_string();
            config.slab.size = ByteSize::kib(64);
            change(&mut config);
            let role = daemon.role("coordinator");
            let server = tonic::transport::Server::builder()
                .add_service(Service::serve(registry.clone()))
                .serve_with_incoming_shutdown(
                    TcpListenerStream::new(listener),
                    role.stop().cancelled_owned(),
                );
            role.spawn("registry", daemon::OnExit::Ignore, server);
            let node = start(config, &daemon.role("memory")).unwrap();
            let channel = proto::channel(&node.record.control, &ChannelOptions::default());
            let bulk = BulkAddress::Tcp(node.record.bulk.as_str().into());
            Self {
                daemon,
                registry,
                channel: channel.unwrap(),
                bulk,
                node,
                transport: TcpTransport::new(ClientLimits::default()),
                slab: Slab::try_new(64, 4096, HugePages::Off).unwrap(),
            }
        }

        async fn reserve(&self, session: u128, slices: u32) -> Result<Granted, ReserveRefused> {
            let request = Reservation {
                session: SessionId(session),
                epoch: Epoch(1),
                tenant: Tenant::default(),
                slices,
                lease: Span::from_secs(30),
            };
            let mut client = proto::client::reservations(self.channel.clone());
            let answer = client.reserve(v1::ReserveRequest::from(request)).await.unwrap();
            answer.into_inner().try_into().unwrap()
        }

        async fn release(&self, session: u128) {
            let mut client = proto::client::reservations(self.channel.clone());
            let release = Release { session: SessionId(session), epoch: Epoch(1) };
            client.release(v1::ReleaseRequest::from(release)).await.unwrap();
        }

        async fn place(&self, grant: &Grant, receipt: &BlockReceipt) -> Placed {
            let place = Place { grant: grant.clone(), receipts: vec![receipt.clone()] };
            let mut client = proto::client::memory_node(self.channel.clone());
            let answer = client.place(v1::PlaceRequest::from(place)).await.unwrap();
            answer.into_inner().try_into().unwrap()
        }

        async fn commit(&self, grant: &Grant, key: BlockKey) -> Committed {
            let commit = Commit { grant: grant.clone(), keys: vec![key] };
            let mut client = proto::client::memory_node(self.channel.clone());
            let answer = client.commit(v1::CommitRequest::from(commit)).await.unwrap();
            answer.into_inner().try_into().unwrap()
        }

        async fn locate(&self, grant: &Grant, key: BlockKey) -> Result<Located, tonic::Status> {
            let locate = Locate { grant: grant.clone(), keys: vec![key] };
            let mut client = proto::client::memory_node(self.channel.clone());
            let answer = client.locate(v1::LocateRequest::from(locate)).await?;
            Ok(answer.into_inner().try_into().unwrap())
        }

        async fn write(&self, grant: &Grant, at: &LocatedBlock, slices: &[Slot]) {
            let (auth, refs) = (credential(grant), refs(at));
            self.transport.write(&self.bulk, &auth, &refs, slices, soon()).await.unwrap();
        }

        async fn read(&self, grant: &Grant, at: &LocatedBlock) -> Result<Vec<SlotMut>, Failure> {
            let landing = self.slab.try_alloc_many(SLICES as u32).unwrap();
            let (auth, refs) = (credential(grant), refs(at));
            let read = self.transport.read(&self.bulk, &auth, &refs, landing, soon()).await;
            read.map_err(|failed| failed.failure)
        }

        /// A block of four slices, and what it must hash to.
        fn block(&self, n: u8) -> (BlockReceipt, Vec<Slot>) {
            let mut slices = self.slab.try_alloc_many(SLICES as u32).unwrap();
            for (i, slice) in slices.iter_mut().enumerate() {
                slice.fill(n + i as u8);
            }
            let checksums = slices.iter().map(|slice| SliceChecksum(xxh3_64(slice))).collect();
            let receipt = BlockReceipt {
                key: BlockKey { hash: BlockHash([n; 32]), generation: 0 },
                index: BlockIdx(0),
                shard: ShardId(0),
                tokens: 16,
                checksums,
            };
            (receipt, slices.into_iter().map(SlotMut::seal).collect())
        }

        fn metrics(&self) -> String {
            daemon::metrics::expose(std::slice::from_ref(&self.node.registry)).unwrap()
        }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    fn credential(grant: &Grant) -> Credential {
        Credential { session: grant.session, epoch: grant.epoch, secret: grant.secret }
    }

    fn refs(at: &LocatedBlock) -> Vec<SlotRef> {
        let refs = at.slices.iter().map(|at| SlotRef { slot: at.slot, generation: at.generation });
        refs.collect()
    }

    #[tokio::test]
    async fn p2_a_block_is_placed_written_verified_located_and_read() {
        let cluster = Cluster::start(|_| {}).await;
        let grant = cluster.reserve(1, 16).await.unwrap().grant;
        let (receipt, slices) = cluster.block(10);
        let placed = cluster.place(&grant, &receipt).await;
        let at = &placed.place[0];
        cluster.write(&grant, at, &slices).await;
        let early = cluster.read(&grant, at).await.unwrap_err();
        assert!(matches!(early, Failure::Refused(Refusal::NotYours(_))), "{early:?}");
        assert_eq!(cluster.commit(&grant, receipt.key).await.committed, [receipt.key]);
        let found = cluster.locate(&grant, receipt.key).await.unwrap().found;
        let read = cluster.read(&grant, &found[0]).await.unwrap();
        assert!(read.iter().zip(&slices).all(|(a, b)| **a == **b));
        assert_eq!(cluster.place(&grant, &receipt).await.held, [receipt.key]);
        let page = cluster.metrics();
        for (name, label, value) in [
            ("oasiskv_memory_slices", "use=\"kept\"", " 4"),
            ("oasiskv_memory_bulk_bytes_total", "direction=\"in\"", " 16384"),
            ("oasiskv_memory_bulk_refused_total", "reason=\"not_yours\"", " 1"),
        ] {
            let mut lines = page.lines().filter(|line| line.starts_with(name));
            let is_there = lines.any(|line| line.contains(label) && line.ends_with(value));
            assert!(is_there, "{name} {label} {value}\n{page}");
        }
    }

    #[tokio::test]
    async fn p2_a_block_that_does_not_hash_to_its_receipt_is_rejected() {
        let cluster = Cluster::start(|_| {}).await;
        let grant = cluster.reserve(1, 16).await.unwrap().grant;
        let (receipt, _) = cluster.block(10);
        let (_, wrong) = cluster.block(90);
        let placed = cluster.place(&grant, &receipt).await;
        cluster.write(&grant, &placed.place[0], &wrong).await;
        assert_eq!(cluster.commit(&grant, receipt.key).await.rejected, [receipt.key]);
        assert_eq!(cluster.locate(&grant, receipt.key).await.unwrap().missing, [receipt.key]);
        let unknown = cluster.block(20).0.key;
        assert_eq!(cluster.commit(&grant, unknown).await.rejected, [unknown]);
    }

    #[tokio::test]
    async fn p6_case_13_a_released_session_reads_nothing_and_leaves_only_cache() {
        let cluster = Cluster::start(|_| {}).await;
        let grant = cluster.reserve(1, 16).await.unwrap().grant;
        let full = cluster.reserve(2, 16).await.unwrap_err();
        assert_eq!(full, ReserveRefused::Full { wanted: 16, free: 0 });
        let (receipt, slices) = cluster.block(10);
        let placed = cluster.place(&grant, &receipt).await;
        cluster.write(&grant, &placed.place[0], &slices).await;
        cluster.commit(&grant, receipt.key).await;
        cluster.release(1).await;
        let refused = cluster.read(&grant, &placed.place[0]).await.unwrap_err();
        assert!(matches!(refused, Failure::Refused(Refusal::NoGrant)), "{refused:?}");
        let status = cluster.locate(&grant, receipt.key).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound);
        let next = cluster.reserve(2, 16).await.unwrap().grant;
        let found = cluster.locate(&next, receipt.key).await.unwrap().found;
        assert_eq!(cluster.read(&next, &found[0]).await.unwrap().len(), SLICES);
    }

    #[tokio::test]
    async fn p7_another_slice_size_is_refused_by_name() {
        let cluster = Cluster::start(|config| config.slab.slice = ByteSize::kib(8)).await;
        let grant = cluster.reserve(1, 8).await.unwrap().grant;
        let (receipt, slices) = cluster.block(10);
        let placed = cluster.place(&grant, &receipt).await;
        let (auth, refs) = (credential(&grant), refs(&placed.place[0]));
        let write = cluster.transport.write(&cluster.bulk, &auth, &refs, &slices, soon()).await;
        let failure = write.unwrap_err().failure;
        let expected = Refusal::SliceBytes { bytes: 8192 };
        assert!(matches!(failure, Failure::Refused(refusal) if refusal == expected));
    }

    #[tokio::test]
    async fn the_node_registers_reports_and_leaves() {
        let cluster = Cluster::start(|config| config.node.id = "memory-7".to_owned()).await;
        let mut watch = membership::Membership::Memory(cluster.registry.clone());
        let mut events = watch_of(&mut watch).await;
        let record = loop {
            match events.next().await.unwrap() {
                membership::Event::Joined(record) => break record,
                membership::Event::Snapshot(mut records) => {
                    if let Some(record) = records.pop() {
                        break record;
                    }
                }
                membership::Event::Gone { .. } => {}
            }
        };
        assert_eq!(record, cluster.node.record);
        assert!(record.incarnation > Incarnation(0));
        let mut observer = proto::client::node(cluster.channel.clone());
        let request = v1::ObserveRequest::from(ids::Term(3));
        let mut reports = observer.observe(request).await.unwrap().into_inner();
        let report = reports.message().await.unwrap().unwrap();
        assert_eq!(report.tiers[0].total_bytes, 64 << 10);
        assert_eq!(report.tiers[0].free_bytes, 64 << 10);
        cluster.daemon.end(daemon::Ending::Finished);
        let drained = cluster.daemon.finish().await;
        assert!(drained.overran.is_empty(), "{:?}", drained.overran);
        loop {
            if let membership::Event::Gone { node, .. } = events.next().await.unwrap() {
                assert_eq!(node.as_str(), "memory-7");
                break;
            }
        }
    }

    async fn watch_of(membership: &mut membership::Membership) -> membership::Watch {
        membership.watch().await.unwrap()
    }

    #[tokio::test]
    async fn p4_a_slab_larger_than_the_host_is_refused_with_field_and_remedy() {
        let daemon = Daemon::new(DrainConfig::default());
        let mut config = Config::default();
        config.slab.size = ByteSize::gib(1 << 13);
        config.drain.grace = Text::secs(1);
        config.slab.slice = ByteSize::mib(1);
        let error = start(config, &daemon.role("memory")).unwrap_err();
        assert!(error.to_string().contains("slab.size"), "{error:#}");
        let error = Arc::new(error);
        assert_eq!(daemon::exit::code_of(&error), daemon::exit::USAGE);
    }
}
