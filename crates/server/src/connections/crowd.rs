//! Which connection is closed when there are too many.
//!
//! A plain value without locks or tasks. A connection is a *stranger's* until a request on it was
//! authenticated under a name; then it is *known* by that name. Promises: a stranger never evicts a
//! known connection, nor a stranger of another peer that has fewer connections; a new connection is
//! always accepted, and the one that was idle for the longest time is closed. Deliberately absent:
//! what connections are used for.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;
use tokio::time::Instant;

/// How many connections there may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Unauthenticated connections.
    pub(crate) strangers: usize,
    /// Authenticated connections of all users together.
    pub(crate) known: usize,
    /// Authenticated connections of one user.
    pub(crate) of_one: usize,
    /// Bytes buffered for unauthenticated connections.
    pub(crate) buffered_bytes: usize,
}

/// The source of a connection: an IPv4 address, or the network part of an IPv6 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Peer(IpAddr);

impl Peer {
    pub(super) fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
        })
    }
}

/// One connection's number.
pub(super) type Id = u64;

/// How far a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The client has sent nothing.
    Silent,
    /// The client has sent something.
    Heard,
    /// The TLS handshake is complete.
    Met,
    /// A request is in progress.
    Busy,
}

impl Stage {
    /// How much longer it may be idle than a silent connection: a client at a later stage has
    /// invested more.
    fn credit(self) -> Duration {
        Duration::from_secs(match self {
            Self::Silent => 0,
            Self::Heard => 2,
            Self::Met => 4,
            Self::Busy => 10,
        })
    }
}

/// The activity of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Doing {
    /// When bytes were last sent or received.
    pub(super) moved: Instant,
    /// How far the connection has come.
    pub(super) stage: Stage,
    /// Bytes buffered for it.
    pub(super) buffered: usize,
}

/// Reports the activity of a connection.
pub(super) trait Does {
    fn doing(&self) -> Doing;
}

#[derive(Debug)]
struct Member<D> {
    peer: Peer,
    /// The hashed user name, once authenticated.
    name: Option<u64>,
    does: D,
}

/// All connections of a listener.
#[derive(Debug)]
pub(super) struct Crowd<D> {
    limits: Limits,
    members: HashMap<Id, Member<D>>,
    strangers: HashMap<Peer, usize>,
    names: HashMap<u64, usize>,
    next: Id,
}

/// No place is free, and no connection may be closed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

impl<D: Does> Crowd<D> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            members: HashMap::new(),
            strangers: HashMap::new(),
            names: HashMap::new(),
            next: 0,
        }
    }

    /// Adds a connection; returns the activity handle of another one that must be closed for it.
    pub(super) fn enter(&mut self, peer: Peer, does: D) -> (Id, Option<D>) {
        let full = self.strangers.values().sum::<usize>() >= self.limits.strangers;
        let gone = full.then(|| self.idlest_stranger()).flatten();
        let gone = gone.and_then(|id| self.leave(id));
        let id = self.next;
        self.next += 1;
        *self.strangers.entry(peer).or_default() += 1;
        self.members.insert(id, Member { peer, name: None, does });
        (id, gone)
    }

    /// A connection has ended.
    pub(super) fn leave(&mut self, id: Id) -> Option<D> {
        let member = self.members.remove(&id)?;
        match member.name {
            Some(name) => less(&mut self.names, &name),
            None => less(&mut self.strangers, &member.peer),
        }
        Some(member.does)
    }

    /// A connection is now authenticated under a name; returns the activity handle of another one
    /// that must be closed for it.
    pub(super) fn know(&mut self, id: Id, name: u64) -> Result<Option<D>, Full> {
        let Some(member) = self.members.get(&id) else { return Err(Full) };
        if member.name.is_some() {
            return Ok(None);
        }
        let peer = member.peer;
        let own = self.names.get(&name).copied().unwrap_or(0);
        let all = self.names.values().sum::<usize>();
        let gone = if own >= self.limits.of_one {
            Some(self.idlest_known(name).ok_or(Full)?)
        } else if all >= self.limits.known {
            let most = self.names.iter().max_by_key(|(_, count)| **count);
            let most = most.map(|(name, _)| *name).unwrap_or(name);
            Some(self.idlest_known(most).ok_or(Full)?)
        } else {
            None
        };
        let gone = gone.and_then(|id| self.leave(id));
        if let Some(member) = self.members.get_mut(&id) {
            member.name = Some(name);
            less(&mut self.strangers, &peer);
            *self.names.entry(name).or_default() += 1;
        }
        Ok(gone)
    }

    /// When too many bytes are buffered for strangers: of the peer with the most bytes, the
    /// connection with the most.
    pub(super) fn greediest(&mut self) -> Option<D> {
        let strangers = || self.members.iter().filter(|(_, member)| member.name.is_none());
        let mut buffered: HashMap<Peer, usize> = HashMap::new();
        for (_, member) in strangers() {
            *buffered.entry(member.peer).or_default() += member.does.doing().buffered;
        }
        if buffered.values().sum::<usize>() <= self.limits.buffered_bytes {
            return None;
        }
        let peer =
            buffered.into_iter().max_by_key(|(_, buffered)| *buffered).map(|(peer, _)| peer)?;
        let own = strangers().filter(|(_, member)| member.peer == peer);
        let id = own.max_by_key(|(_, member)| member.does.doing().buffered).map(|(id, _)| *id)?;
        self.leave(id)
    }

    fn idlest_stranger(&self) -> Option<Id> {
        let (peer, _) = self.strangers.iter().max_by_key(|(_, count)| **count)?;
        let own = self.members.iter().filter(|(_, m)| m.name.is_none() && m.peer == *peer);
        let since = |doing: Doing| doing.moved + doing.stage.credit();
        own.min_by_key(|(id, member)| (since(member.does.doing()), **id)).map(|(id, _)| *id)
    }

    /// The longest idle connection of a user; one with a request in progress is never closed.
    fn idlest_known(&self, name: u64) -> Option<Id> {
        let own = self.members.iter().filter(|(_, member)| member.name == Some(name));
        let idle = own.filter(|(_, member)| member.does.doing().stage != Stage::Busy);
        idle.min_by_key(|(id, member)| (member.does.doing().moved, **id)).map(|(id, _)| *id)
    }
}

fn less<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const LIMITS: Limits = Limits { strangers: 4, known: 4, of_one: 3, buffered_bytes: 100 };

    #[derive(Debug, PartialEq)]
    struct Fake(&'static str, Doing);

    impl Does for Fake {
        fn doing(&self) -> Doing {
            self.1
        }
    }

    /// A connection whose last activity was at this second.
    fn at(name: &'static str, start: Instant, second: u64, busy: bool) -> Fake {
        let stage = if busy { Stage::Busy } else { Stage::Silent };
        Fake(name, Doing { moved: start + Duration::from_secs(second), stage, buffered: 0 })
    }

    fn peer(last: u8) -> Peer {
        Peer::of(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)))
    }

    #[test]
    fn the_idlest_stranger_of_the_largest_peer_makes_room() {
        let start = Instant::now();
        let mut crowd = Crowd::new(LIMITS);
        let mut enter = |who, does| crowd.enter(peer(who), does).1.map(|gone: Fake| gone.0);
        assert_eq!(enter(2, at("other", start, 0, false)), None);
        assert_eq!(enter(1, at("busy", start, 1, true)), None);
        assert_eq!(enter(1, at("idle", start, 2, false)), None);
        assert_eq!(enter(1, at("newer", start, 3, false)), None);
        assert_eq!(enter(3, at("a", start, 4, false)), Some("idle"), "not the other peer's");
        assert_eq!(enter(3, at("b", start, 20, false)), Some("newer"));
        assert_eq!(enter(1, at("c", start, 20, false)), Some("a"), "of peer 3, which has two");
        assert_eq!(enter(1, at("d", start, 20, false)), Some("busy"), "which was idle too long");
    }

    #[test]
    fn whoever_has_come_further_may_wait_longer() {
        let start = Instant::now();
        let mut crowd = Crowd::new(LIMITS);
        let mut enter = |name, second, stage| {
            let moved = start + Duration::from_secs(second);
            crowd
                .enter(peer(1), Fake(name, Doing { moved, stage, buffered: 0 }))
                .1
                .map(|gone| gone.0)
        };
        for (name, second, stage) in [
            ("met", 0, Stage::Met),
            ("busy", 0, Stage::Busy),
            ("heard", 1, Stage::Heard),
            ("silent", 2, Stage::Silent),
        ] {
            assert_eq!(enter(name, second, stage), None);
        }
        let went: Vec<_> =
            (9..13).filter_map(|second| enter("new", second, Stage::Silent)).collect();
        assert_eq!(went, ["silent", "heard", "met", "new"], "the newcomer of second 9");
    }

    #[test]
    fn strangers_never_cost_one_who_is_known_his_place() {
        let start = Instant::now();
        let mut crowd = Crowd::new(LIMITS);
        let (known, _) = crowd.enter(peer(1), at("known", start, 0, false));
        assert_eq!(crowd.know(known, 7), Ok(None));
        assert_eq!(crowd.know(known, 7), Ok(None), "again is no news");
        for second in 1..50 {
            let gone = crowd.enter(peer(1), at("stranger", start, second, false)).1;
            assert_eq!(gone.is_some(), second > 4);
            assert!(gone.is_none_or(|gone| gone.0 == "stranger"));
        }
        assert_eq!(crowd.leave(known).unwrap().0, "known");
        assert_eq!(crowd.leave(known), None);
    }

    #[test]
    fn of_one_name_there_are_only_so_many() {
        let start = Instant::now();
        let mut crowd = Crowd::new(LIMITS);
        let mut join = |name, text, busy| {
            let (id, _) = crowd.enter(peer(1), at(text, start, 1, busy));
            let known = crowd.know(id, name).map(|gone| gone.map(|gone| gone.0));
            if known.is_err() {
                crowd.leave(id);
            }
            known
        };
        assert_eq!(join(1, "a", true), Ok(None));
        assert_eq!(join(1, "b", false), Ok(None));
        assert_eq!(join(1, "c", true), Ok(None));
        assert_eq!(join(1, "d", true), Ok(Some("b")), "an idle one of his own");
        assert_eq!(join(1, "e", true), Err(Full), "all others are busy");
        assert_eq!(join(2, "f", false), Ok(None));
        assert_eq!(join(3, "g", true), Err(Full), "whoever has the most is busy");
        assert!(crowd.strangers.is_empty());
        assert_eq!(crowd.names, HashMap::from([(1, 3), (2, 1)]));
    }

    #[test]
    fn whoever_has_the_most_kept_for_him_goes_first() {
        let start = Instant::now();
        let mut crowd = Crowd::new(LIMITS);
        let mut enter = |who, name, buffered| {
            crowd
                .enter(peer(who), Fake(name, Doing { moved: start, stage: Stage::Met, buffered }))
                .0
        };
        enter(1, "one", 45);
        enter(2, "some", 20);
        enter(2, "more", 30);
        let known = enter(3, "known", 500);
        crowd.know(known, 1).unwrap();
        assert_eq!(crowd.greediest(), None, "95 bytes are not too many");
        crowd.enter(
            peer(1),
            Fake("little", Doing { moved: start, stage: Stage::Met, buffered: 10 }),
        );
        assert_eq!(crowd.greediest().unwrap().0, "one");
        assert_eq!(crowd.greediest(), None);
    }

    #[test]
    fn a_network_of_ipv6_is_one_peer() {
        let of = |text: &str| Peer::of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), peer(1));
    }
}
