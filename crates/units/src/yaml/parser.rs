//! Tokens into a tree of nodes (libyaml's parser, the first document of a stream).

use super::YamlError;
use super::reader::Mark;
use super::scanner::{Kind, Scanner, Token};
use std::collections::BTreeMap;

/// A tree; nodes are known by their place in the list.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) nodes: Vec<Node>,
    pub(super) root: Option<usize>,
}

/// One node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) content: Content,
    pub(super) tag: String,
    /// Its line, from zero.
    pub(super) line: usize,
}

/// What a node is.
#[derive(Debug)]
pub(super) enum Content {
    /// Its text, and whether its meaning follows from it.
    Scalar(String, bool),
    List(Vec<usize>),
    Map(Vec<(usize, usize)>),
    /// The name and the node it stands for.
    Alias(String, usize),
}

impl Node {
    /// Whether, as a key, it asks to take over another map.
    pub(super) fn is_merge(&self) -> bool {
        match &self.content {
            Content::Scalar(text, plain) => {
                text == "<<" && (*plain || self.tag == "tag:yaml.org,2002:merge")
            }
            _ => false,
        }
    }
}

/// Documents of kubelets are not this deep; a deeper one could exhaust the stack.
const MAX_DEPTH: usize = 1000;

/// Parses the first document.
pub(super) fn parse(data: &[u8]) -> Result<Tree, YamlError> {
    let data = if data.is_empty() { b"\n" } else { data };
    let mut parser = Parser {
        scanner: Scanner::new(data),
        tree: Tree::default(),
        anchors: BTreeMap::new(),
        tags: Vec::new(),
        depth: 0,
    };
    parser.document()?;
    Ok(parser.tree)
}

struct Parser<'a> {
    scanner: Scanner<'a>,
    tree: Tree,
    anchors: BTreeMap<String, usize>,
    /// Handles of tags and what they stand for.
    tags: Vec<(String, String)>,
    depth: usize,
}

/// Where a node may be: what may begin there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Block,
    /// In a block mapping, where a list need not be indented.
    BlockOrBareList,
    Flow,
}

impl Parser<'_> {
    fn document(&mut self) -> Result<(), YamlError> {
        self.scanner.peek()?;
        self.scanner.skip();
        let token = self.scanner.peek()?;
        let explicit =
            matches!(token.kind, Kind::Version(..) | Kind::TagDirective(..) | Kind::DocumentStart);
        if token.kind == Kind::StreamEnd {
            return Ok(());
        }
        self.directives()?;
        let mut empty = false;
        if explicit {
            let token = self.scanner.peek()?;
            if token.kind != Kind::DocumentStart {
                return Err(error("did not find expected <document start>", &token));
            }
            self.scanner.skip();
            let token = self.scanner.peek()?;
            empty = matches!(
                token.kind,
                Kind::Version(..)
                    | Kind::TagDirective(..)
                    | Kind::DocumentStart
                    | Kind::DocumentEnd
                    | Kind::StreamEnd
            );
        }
        let root = if empty { self.empty()? } else { self.node(Place::Block)? };
        self.tree.root = Some(root);
        self.scanner.peek()?;
        Ok(())
    }

    fn directives(&mut self) -> Result<(), YamlError> {
        let mut versioned = false;
        loop {
            let token = self.scanner.peek()?;
            match &token.kind {
                Kind::Version(..) if versioned => {
                    return Err(error("found duplicate %YAML directive", &token));
                }
                Kind::Version(1, 1) => versioned = true,
                Kind::Version(..) => {
                    return Err(error("found incompatible YAML document", &token));
                }
                Kind::TagDirective(handle, prefix) => {
                    if self.tags.iter().any(|(known, _)| known == handle) {
                        return Err(error("found duplicate %TAG directive", &token));
                    }
                    self.tags.push((handle.clone(), prefix.clone()));
                }
                _ => break,
            }
            self.scanner.skip();
        }
        for (handle, prefix) in [("!", "!"), ("!!", "tag:yaml.org,2002:")] {
            if !self.tags.iter().any(|(known, _)| known == handle) {
                self.tags.push((handle.to_owned(), prefix.to_owned()));
            }
        }
        Ok(())
    }

    fn add(&mut self, content: Content, tag: String, line: usize) -> usize {
        self.tree.nodes.push(Node { content, tag, line });
        self.tree.nodes.len() - 1
    }

    /// A node that is not there.
    fn empty(&mut self) -> Result<usize, YamlError> {
        let line = self.scanner.peek()?.start.line;
        Ok(self.add(Content::Scalar(String::new(), true), String::new(), line))
    }

    fn empty_at(&mut self, mark: Mark) -> usize {
        self.add(Content::Scalar(String::new(), true), String::new(), mark.line)
    }

    fn node(&mut self, place: Place) -> Result<usize, YamlError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(YamlError::new("exceeded max depth of 10000"));
        }
        let node = self.node_inside(place);
        self.depth -= 1;
        node
    }

    fn node_inside(&mut self, place: Place) -> Result<usize, YamlError> {
        let mut token = self.scanner.peek()?;
        let start = token.start;
        if let Kind::Alias(name) = token.kind {
            let target = self
                .anchors
                .get(&name)
                .copied()
                .ok_or_else(|| YamlError::new(format!("unknown anchor '{name}' referenced")))?;
            self.scanner.skip();
            return Ok(self.add(Content::Alias(name, target), String::new(), start.line));
        }
        let (mut anchor, mut tag) = (None, None);
        for _ in 0..2 {
            match token.kind {
                Kind::Anchor(name) if anchor.is_none() => anchor = Some(name),
                Kind::Tag(handle, suffix) if tag.is_none() => {
                    tag = Some((handle, suffix, token.start));
                }
                _ => break,
            }
            self.scanner.skip();
            token = self.scanner.peek()?;
        }
        let tag = match tag {
            None => String::new(),
            Some((handle, suffix, _)) if handle.is_empty() => suffix,
            Some((handle, suffix, mark)) => {
                let known = self.tags.iter().find(|(known, _)| *known == handle);
                let full = known.map(|(_, prefix)| format!("{prefix}{suffix}"));
                full.filter(|tag| !tag.is_empty())
                    .ok_or_else(|| YamlError::at(mark.line, "found undefined tag handle"))?
            }
        };
        let id = self.tree.nodes.len();
        let named = anchor.is_some() || !tag.is_empty();
        // Known before its content, which may name it.
        let mut note = |anchors: &mut BTreeMap<String, usize>| {
            if let Some(name) = anchor.take() {
                anchors.insert(name, id);
            }
        };
        let block = place != Place::Flow;
        match token.kind {
            Kind::Scalar(text, plain) => {
                note(&mut self.anchors);
                self.scanner.skip();
                let plain = (tag.is_empty() && plain) || tag == "!";
                Ok(self.add(Content::Scalar(text, plain), tag, start.line))
            }
            Kind::Entry if place == Place::BlockOrBareList => {
                note(&mut self.anchors);
                self.add(Content::List(Vec::new()), tag, start.line);
                let items = self.bare_list()?;
                Ok(self.settle(id, Content::List(items)))
            }
            Kind::FlowSequence => {
                note(&mut self.anchors);
                self.add(Content::List(Vec::new()), tag, start.line);
                let items = self.flow_list()?;
                Ok(self.settle(id, Content::List(items)))
            }
            Kind::FlowMapping => {
                note(&mut self.anchors);
                self.add(Content::Map(Vec::new()), tag, start.line);
                let pairs = self.flow_map()?;
                Ok(self.settle(id, Content::Map(pairs)))
            }
            Kind::BlockSequence if block => {
                note(&mut self.anchors);
                self.add(Content::List(Vec::new()), tag, start.line);
                let items = self.block_list()?;
                Ok(self.settle(id, Content::List(items)))
            }
            Kind::BlockMapping if block => {
                note(&mut self.anchors);
                self.add(Content::Map(Vec::new()), tag, start.line);
                let pairs = self.block_map()?;
                Ok(self.settle(id, Content::Map(pairs)))
            }
            _ if named => {
                note(&mut self.anchors);
                let plain = tag.is_empty();
                Ok(self.add(Content::Scalar(String::new(), plain), tag, start.line))
            }
            _ => Err(error("did not find expected node content", &token)),
        }
    }

    fn settle(&mut self, id: usize, content: Content) -> usize {
        if let Some(node) = self.tree.nodes.get_mut(id) {
            node.content = content;
        }
        id
    }

    fn block_list(&mut self) -> Result<Vec<usize>, YamlError> {
        self.scanner.skip();
        let mut items = Vec::new();
        loop {
            let token = self.scanner.peek()?;
            match token.kind {
                Kind::Entry => {
                    self.scanner.skip();
                    let next = self.scanner.peek()?;
                    items.push(match next.kind {
                        Kind::Entry | Kind::BlockEnd => self.empty_at(token.start),
                        _ => self.node(Place::Block)?,
                    });
                }
                Kind::BlockEnd => {
                    self.scanner.skip();
                    return Ok(items);
                }
                _ => return Err(error("did not find expected '-' indicator", &token)),
            }
        }
    }

    fn bare_list(&mut self) -> Result<Vec<usize>, YamlError> {
        let mut items = Vec::new();
        loop {
            let token = self.scanner.peek()?;
            if token.kind != Kind::Entry {
                return Ok(items);
            }
            self.scanner.skip();
            let next = self.scanner.peek()?;
            items.push(match next.kind {
                Kind::Entry | Kind::Key | Kind::Value | Kind::BlockEnd => {
                    self.empty_at(token.start)
                }
                _ => self.node(Place::Block)?,
            });
        }
    }

    /// A key or a value of a block mapping, after its mark.
    fn block_member(&mut self, mark: Mark) -> Result<usize, YamlError> {
        match self.scanner.peek()?.kind {
            Kind::Key | Kind::Value | Kind::BlockEnd => Ok(self.empty_at(mark)),
            _ => self.node(Place::BlockOrBareList),
        }
    }

    fn block_map(&mut self) -> Result<Vec<(usize, usize)>, YamlError> {
        self.scanner.skip();
        let mut pairs = Vec::new();
        loop {
            let token = self.scanner.peek()?;
            match token.kind {
                Kind::Key => {
                    self.scanner.skip();
                    let key = self.block_member(token.start)?;
                    let token = self.scanner.peek()?;
                    let value = if token.kind == Kind::Value {
                        self.scanner.skip();
                        self.block_member(token.start)?
                    } else {
                        self.empty_at(token.start)
                    };
                    pairs.push((key, value));
                }
                Kind::BlockEnd => {
                    self.scanner.skip();
                    return Ok(pairs);
                }
                _ => return Err(error("did not find expected key", &token)),
            }
        }
    }

    fn flow_list(&mut self) -> Result<Vec<usize>, YamlError> {
        self.scanner.skip();
        let mut items = Vec::new();
        let mut first = true;
        loop {
            let mut token = self.scanner.peek()?;
            if token.kind != Kind::FlowSequenceEnd && !first {
                if token.kind != Kind::FlowEntry {
                    return Err(error("did not find expected ',' or ']'", &token));
                }
                self.scanner.skip();
                token = self.scanner.peek()?;
            }
            first = false;
            match token.kind {
                Kind::FlowSequenceEnd => {
                    self.scanner.skip();
                    return Ok(items);
                }
                Kind::Key => items.push(self.single_pair(token.start)?),
                _ => items.push(self.node(Place::Flow)?),
            }
        }
    }

    /// `key: value` as an item of a list in brackets.
    fn single_pair(&mut self, start: Mark) -> Result<usize, YamlError> {
        let id = self.add(Content::Map(Vec::new()), String::new(), start.line);
        self.scanner.skip();
        let token = self.scanner.peek()?;
        let key = match token.kind {
            Kind::Value | Kind::FlowEntry | Kind::FlowSequenceEnd => {
                self.scanner.skip();
                self.empty_at(token.start)
            }
            _ => self.node(Place::Flow)?,
        };
        let mut token = self.scanner.peek()?;
        let mut value = None;
        if token.kind == Kind::Value {
            self.scanner.skip();
            token = self.scanner.peek()?;
            if !matches!(token.kind, Kind::FlowEntry | Kind::FlowSequenceEnd) {
                value = Some(self.node(Place::Flow)?);
            }
        }
        let value = value.unwrap_or_else(|| self.empty_at(token.start));
        self.scanner.peek()?;
        Ok(self.settle(id, Content::Map(vec![(key, value)])))
    }

    fn flow_map(&mut self) -> Result<Vec<(usize, usize)>, YamlError> {
        self.scanner.skip();
        let mut pairs = Vec::new();
        let mut first = true;
        loop {
            let mut token = self.scanner.peek()?;
            if token.kind != Kind::FlowMappingEnd && !first {
                if token.kind != Kind::FlowEntry {
                    return Err(error("did not find expected ',' or '}'", &token));
                }
                self.scanner.skip();
                token = self.scanner.peek()?;
            }
            first = false;
            match token.kind {
                Kind::FlowMappingEnd => {
                    self.scanner.skip();
                    return Ok(pairs);
                }
                Kind::Key => {
                    self.scanner.skip();
                    let token = self.scanner.peek()?;
                    let key = match token.kind {
                        Kind::Value | Kind::FlowEntry | Kind::FlowMappingEnd => {
                            self.empty_at(token.start)
                        }
                        _ => self.node(Place::Flow)?,
                    };
                    pairs.push((key, self.flow_value()?));
                }
                _ => {
                    let key = self.node(Place::Flow)?;
                    pairs.push((key, self.empty()?));
                }
            }
        }
    }

    fn flow_value(&mut self) -> Result<usize, YamlError> {
        let mut token = self.scanner.peek()?;
        if token.kind == Kind::Value {
            self.scanner.skip();
            token = self.scanner.peek()?;
            if !matches!(token.kind, Kind::FlowEntry | Kind::FlowMappingEnd) {
                return self.node(Place::Flow);
            }
        }
        Ok(self.empty_at(token.start))
    }
}

/// An error of the parser, whose lines are told as upstream does: one less.
fn error(problem: &str, token: &Token) -> YamlError {
    YamlError::at(token.start.line, problem)
}
