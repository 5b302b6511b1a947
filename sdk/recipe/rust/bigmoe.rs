//! Recipes in Rust for bigmoe: the calls of docs/recipe-abi.md, and a builder that writes a plan. Only the standard library is
//! needed.
//!
//! ```ignore
//! mod bigmoe;
//! use bigmoe::*;
//!
//! recipe!("olmoe", "1", build);
//! fn build(b: &mut Builder) { … }
//! ```
//!
//!     rustc --edition 2021 --crate-type cdylib --target wasm32-unknown-unknown -C opt-level=s -C panic=abort \
//!         -C target-cpu=mvp -C strip=symbols -o olmoe.wasm main.rs
//!
//! There are no errors to handle: a key or tensor that is missing, or not as it is asked for, ends the recipe with a message.
//! Ops without a function of their own are written with [Builder::op]; docs/ops.md has them all.
#![allow(dead_code)]

mod host {
    #[link(wasm_import_module = "bigmoe_v1")]
    extern "C" {
        pub fn meta_find(key: *const u8, size: usize) -> i32;
        pub fn meta_type(handle: i32) -> i32;
        pub fn meta_len(handle: i32) -> i32;
        pub fn meta_int(handle: i32, index: i32) -> i64;
        pub fn meta_float(handle: i32, index: i32) -> f64;
        pub fn meta_text(handle: i32, index: i32, buf: *mut u8, cap: usize) -> usize;
        pub fn tensor_count() -> i32;
        pub fn tensor_find(name: *const u8, size: usize) -> i32;
        pub fn tensor_name(index: i32, buf: *mut u8, cap: usize) -> usize;
        pub fn tensor_dims(index: i32, dims: *mut u64) -> i32;
        pub fn fail(kind: i32, message: *const u8, size: usize) -> !;
        pub fn warn(message: *const u8, size: usize);
        pub fn plan(bytes: *const u8, size: usize);
    }
}

/// Kinds of failure: the file contradicts itself, or is legal and this recipe cannot describe it.
pub const CORRUPT: i32 = 1;
pub const UNSUPPORTED: i32 = 3;

/// Bounds for sizes read from a file.
pub const MAX_LAYERS: i64 = 1000;
pub const MAX_COUNT: i64 = 1 << 16;
pub const MAX_WIDTH: i64 = 1 << 24;
pub const MAX_CONTEXT: i64 = 1 << 40;

/// Defines what the module exports.
#[macro_export]
macro_rules! recipe {
    ($name:literal, $version:literal, $build:path) => {
        #[no_mangle]
        pub extern "C" fn bigmoe_abi_version() -> i32 {
            2
        }
        #[no_mangle]
        pub extern "C" fn bigmoe_plan() {
            $crate::bigmoe::run($name, $version, $build)
        }
    };
}

pub fn run(name: &str, version: &str, build: fn(&mut Builder)) {
    let mut b = Builder::default();
    b.architecture = b.text("general.architecture");
    build(&mut b);
    b.end_block();
    let mut p = Wire::default();
    p.number(1, 1); // version of the plan's schema
    p.text(2, &b.architecture);
    p.text(3, name);
    p.text(4, version);
    p.message(5, |w| w.0.extend(&b.model.0));
    for section in [&b.weights, &b.banks, &b.states, &b.blocks, &b.unused] {
        p.0.extend(&section.0);
    }
    unsafe { host::plan(p.0.as_ptr(), p.0.len()) }
}

/// Ends the recipe with a message.
pub fn refuse(kind: i32, message: String) -> ! {
    unsafe { host::fail(kind, message.as_ptr(), message.len()) }
}

/// Tells the person who opens the file something that is no reason to refuse it.
pub fn warn(message: &str) {
    unsafe { host::warn(message.as_ptr(), message.len()) }
}

/// Protobuf, written by hand: see sdk/plan/plan.proto.
#[derive(Default)]
struct Wire(Vec<u8>);

impl Wire {
    fn varint(&mut self, mut v: u64) {
        while v >= 128 {
            self.0.push(v as u8 | 128);
            v >>= 7;
        }
        self.0.push(v as u8);
    }
    fn tag(&mut self, field: u64, kind: u64) {
        self.varint(field << 3 | kind)
    }
    fn number(&mut self, field: u64, v: u64) {
        if v != 0 {
            self.tag(field, 0);
            self.varint(v);
        }
    }
    fn bytes(&mut self, field: u64, v: &[u8]) {
        self.tag(field, 2);
        self.varint(v.len() as u64);
        self.0.extend(v);
    }
    fn text(&mut self, field: u64, v: &str) {
        self.bytes(field, v.as_bytes())
    }
    fn message(&mut self, field: u64, write: impl FnOnce(&mut Wire)) {
        let mut inner = Wire::default();
        write(&mut inner);
        self.bytes(field, &inner.0)
    }
}

const FLOAT32: i32 = 6;
const BOOL: i32 = 7;
const STRING: i32 = 8;
const FLOAT64: i32 = 12;
const ARRAY: i32 = 256;

/// A text of unknown length.
fn read(get: impl Fn(*mut u8, usize) -> usize) -> String {
    let mut buf = vec![0; get(std::ptr::null_mut(), 0)];
    get(buf.as_mut_ptr(), buf.len());
    String::from_utf8_lossy(&buf).into_owned()
}

/// One metadata value.
struct Value {
    key: String,
    handle: i32,
    elem: i32,
    count: i32,
}

impl Value {
    fn refuse(&self, expected: String, found: String) -> ! {
        refuse(CORRUPT, format!("key {:?}: expected {expected}, found {found}", self.key))
    }
    fn integer(&self, i: i32, min: i64, max: i64) -> i64 {
        if [FLOAT32, FLOAT64, BOOL, STRING].contains(&self.elem) {
            self.refuse("an integer".into(), format!("type {}", self.elem))
        }
        let v = unsafe { host::meta_int(self.handle, i) };
        if v < min || v > max {
            self.refuse(format!("{min} to {max}"), v.to_string())
        }
        v
    }
}

/// Reads a model file and writes its plan. Values, weights, banks and states go by their names.
#[derive(Default)]
pub struct Builder {
    pub architecture: String,
    model: Wire,
    weights: Wire,
    banks: Wire,
    states: Wire,
    blocks: Wire,
    unused: Wire,
    block: Option<Wire>,
    prefix: String, // of the names in the block
}

impl Builder {
    // Keys are given without the architecture's prefix, except those of the general and tokenizer groups.

    fn full(&self, key: &str) -> String {
        match key.starts_with("general.") || key.starts_with("tokenizer.") {
            true => key.to_string(),
            false => format!("{}.{key}", self.architecture),
        }
    }
    fn find(&self, key: &str) -> Option<Value> {
        let key = self.full(key);
        let handle = unsafe { host::meta_find(key.as_ptr(), key.len()) };
        if handle < 0 {
            return None;
        }
        let (elem, count) = unsafe { (host::meta_type(handle), host::meta_len(handle)) };
        Some(Value { key, handle, elem, count })
    }
    fn require(&self, key: &str) -> Value {
        self.find(key).unwrap_or_else(|| refuse(CORRUPT, format!("key {:?} is missing", self.full(key))))
    }
    pub fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }
    pub fn uint(&self, key: &str, min: i64, max: i64) -> i64 {
        self.per_layer(key, 1, min, max)[0]
    }
    pub fn uint_or(&self, key: &str, missing: i64, min: i64, max: i64) -> i64 {
        if self.has(key) { self.uint(key, min, max) } else { missing }
    }
    /// One number for each layer; the key holds one for all or an array.
    pub fn per_layer(&self, key: &str, layers: i64, min: i64, max: i64) -> Vec<i64> {
        let mut v = self.require(key);
        v.elem &= !ARRAY;
        if v.count != 1 && v.count as i64 != layers {
            v.refuse(format!("one integer, or {layers}"), v.count.to_string())
        }
        (0..layers).map(|i| v.integer(if v.count == 1 { 0 } else { i as i32 }, min, max)).collect()
    }
    pub fn per_layer_or(&self, key: &str, missing: i64, layers: i64, min: i64, max: i64) -> Vec<i64> {
        if self.has(key) { self.per_layer(key, layers, min, max) } else { vec![missing; layers as usize] }
    }
    pub fn float(&self, key: &str, min: f64, max: f64) -> f64 {
        let v = self.require(key);
        if v.elem != FLOAT32 && v.elem != FLOAT64 {
            v.refuse("a number".into(), format!("type {}", v.elem))
        }
        let x = unsafe { host::meta_float(v.handle, 0) };
        if !(x >= min && x <= max) {
            v.refuse(format!("{min} to {max}"), x.to_string()) // also what is not a number
        }
        x
    }
    pub fn float_or(&self, key: &str, missing: f64, min: f64, max: f64) -> f64 {
        if self.has(key) { self.float(key, min, max) } else { missing }
    }
    pub fn text(&self, key: &str) -> String {
        let v = self.require(key);
        if v.elem != STRING {
            v.refuse("a string".into(), format!("type {}", v.elem))
        }
        read(|buf, cap| unsafe { host::meta_text(v.handle, 0, buf, cap) })
    }
    pub fn text_or(&self, key: &str, missing: &str) -> String {
        if self.has(key) { self.text(key) } else { missing.into() }
    }
    /// The number of tokens.
    pub fn vocabulary(&self) -> i64 {
        let v = self.require("tokenizer.ggml.tokens");
        if v.elem != STRING | ARRAY || v.count < 1 || v.count as i64 > MAX_WIDTH {
            v.refuse(format!("1 to {MAX_WIDTH} strings"), format!("{} of type {}", v.count, v.elem))
        }
        v.count as i64
    }

    pub fn tensors(&self) -> Vec<String> {
        (0..unsafe { host::tensor_count() }).map(|i| read(|buf, cap| unsafe { host::tensor_name(i, buf, cap) })).collect()
    }
    pub fn has_tensor(&self, name: &str) -> bool {
        unsafe { host::tensor_find(name.as_ptr(), name.len()) >= 0 }
    }
    fn check_shape(&self, name: &str, shape: &[i64]) {
        let index = unsafe { host::tensor_find(name.as_ptr(), name.len()) };
        if index < 0 {
            refuse(CORRUPT, format!("tensor {name:?} is missing"))
        }
        let mut found = [0u64; 4];
        unsafe { host::tensor_dims(index, found.as_mut_ptr()) };
        if (0..4).any(|i| found[i] != *shape.get(i).unwrap_or(&1) as u64) {
            refuse(CORRUPT, format!("tensor {name:?}: expected {shape:?}, found {found:?}"))
        }
    }
    fn declare(&mut self, tensor: &str, shape: &[i64], by_row: bool, elem: Option<u64>) -> String {
        self.check_shape(tensor, shape);
        self.weights.message(6, |w| {
            w.text(1, tensor);
            w.message(2, |w| w.text(1, tensor));
            w.message(3, |w| shape.iter().for_each(|&n| w.varint(n as u64)));
            w.number(4, by_row as u64);
            if let Some(elem) = elem {
                w.message(5, |w| w.varint(elem));
            }
        });
        tensor.into()
    }
    /// A tensor that stays in memory, the contiguous size first. Each is declared once.
    pub fn weight(&mut self, tensor: &str, shape: &[i64]) -> String {
        self.declare(tensor, shape, false, None)
    }
    pub fn weight_f32(&mut self, tensor: &str, shape: &[i64]) -> String {
        self.declare(tensor, shape, false, Some(0))
    }
    /// A table of which only the rows of the batch's tokens are read.
    pub fn rows(&mut self, tensor: &str, width: i64, count: i64) -> String {
        self.declare(tensor, &[width, count], true, None)
    }
    pub fn unused(&mut self, tensor: &str, reason: &str) {
        self.unused.message(10, |w| {
            w.text(1, tensor);
            w.text(2, reason);
        })
    }
    /// The experts of a layer, each three matrices: gate, up {width, hidden} and down {hidden, width}.
    pub fn gated_bank(&mut self, layer: i64, experts: i64, width: i64, hidden: i64, gate: &str, up: &str, down: &str) -> String {
        let parts = [(1, gate, width, hidden), (2, up, width, hidden), (3, down, hidden, width)];
        for (_, tensor, from, to) in parts {
            self.check_shape(tensor, &[from, to, experts]);
        }
        let name = format!("l{layer}.experts");
        self.banks.message(7, |w| {
            w.text(1, &name);
            w.number(2, layer as u64);
            w.number(3, experts as u64);
            for (role, tensor, from, to) in parts {
                w.message(4, |w| {
                    w.number(1, role);
                    w.text(2, tensor);
                    w.number(3, from as u64);
                    w.number(4, to as u64);
                })
            }
        });
        name
    }
    /// A cache of keys and values, one entry for each position, or for the last window of them if that is not 0.
    pub fn kv(&mut self, name: &str, key_width: i64, value_width: i64, window: i64) -> String {
        let name = format!("{}{name}", self.prefix);
        self.states.message(8, |w| {
            w.text(1, &name);
            for (field, n) in [(2, 1), (3, key_width), (4, value_width), (5, window)] {
                w.number(field, n as u64)
            }
        });
        name
    }
    /// The sizes that people ask for.
    pub fn describe(&mut self, layers: i64, width: i64, vocabulary: i64, context: i64, experts: i64, used: i64) {
        for (i, n) in [layers, width, vocabulary, context, experts, used].into_iter().enumerate() {
            self.model.number(i as u64 + 1, n as u64)
        }
    }

    fn end_block(&mut self) {
        if let Some(block) = self.block.take() {
            self.blocks.bytes(9, &block.0)
        }
    }
    fn start_block(&mut self, kind: u64, layer: i64, prefix: String) {
        self.end_block();
        let mut block = Wire::default();
        block.number(1, kind);
        block.number(2, layer as u64);
        (self.block, self.prefix) = (Some(block), prefix);
    }
    pub fn embedding(&mut self) {
        self.start_block(1, 0, String::new())
    }
    pub fn layer(&mut self, i: i64) {
        self.start_block(2, i, format!("l{i}."))
    }
    pub fn head(&mut self) {
        self.start_block(3, 0, String::new())
    }

    /// Writes an op and returns the names of its results. Operands come in the order of docs/ops.md; "" leaves one out that
    /// others follow.
    pub fn op(&mut self, op: Op) -> Vec<String> {
        let out: Vec<String> = op.out.iter().map(|name| format!("{}{name}", self.prefix)).collect();
        let block = self.block.as_mut().unwrap_or_else(|| refuse(4, format!("op {} outside a block", op.kind)));
        block.message(3, |w| {
            w.text(1, op.kind);
            op.inputs.iter().for_each(|name| w.text(2, name));
            op.weights.iter().for_each(|name| w.text(3, name));
            op.states.iter().for_each(|name| w.text(4, name));
            if !op.bank.is_empty() {
                w.text(5, op.bank)
            }
            out.iter().for_each(|name| w.text(6, name));
            op.attrs.iter().filter(|(_, v)| !v.is_default()).for_each(|(name, v)| {
                w.message(7, |w| {
                    w.text(1, name);
                    v.write(w)
                })
            })
        });
        out
    }
    fn one(&mut self, op: Op) -> String {
        self.op(op).remove(0)
    }

    pub fn embed(&mut self, name: &str, table: &str) -> String {
        self.one(Op { kind: "embed", weights: &[table], out: &[name], ..Op::default() })
    }
    /// Normalises groups of elements, or the whole row if group is 0.
    pub fn rms_norm(&mut self, name: &str, x: &str, weight: &str, eps: f64, group: i64) -> String {
        let attrs = &[("eps", Attr::Float(eps)), ("group", Attr::Int(group))];
        self.one(Op { kind: "rms_norm", inputs: &[x], weights: &[weight], out: &[name], attrs, ..Op::default() })
    }
    pub fn linear(&mut self, name: &str, x: &str, weight: &str) -> String {
        self.one(Op { kind: "linear", inputs: &[x], weights: &[weight], out: &[name], ..Op::default() })
    }
    /// Keeps activations in 32 bits: routers need it.
    pub fn linear_exact(&mut self, name: &str, x: &str, weight: &str) -> String {
        let attrs = &[("exact", Attr::Flag(true))];
        self.one(Op { kind: "linear", inputs: &[x], weights: &[weight], out: &[name], attrs, ..Op::default() })
    }
    pub fn rope(&mut self, name: &str, x: &str, head_dim: i64, r: &Rope) -> String {
        let attrs = &[
            ("head_dim", Attr::Int(head_dim)),
            ("n_rot", Attr::Int(r.rotated)),
            ("base", Attr::Float(r.base)),
            ("scaling", Attr::Text(r.scaling)),
            ("factor", Attr::Float(r.factor)),
            ("original_context", Attr::Int(r.original_context)),
            ("magnitude", Attr::Float(r.magnitude)),
        ];
        self.one(Op { kind: "rope", inputs: &[x], out: &[name], attrs, ..Op::default() })
    }
    pub fn attention(&mut self, name: &str, qkv: [&str; 3], cache: &str, heads: [i64; 3], scale: f64) -> String {
        let [heads, kv_heads, head_dim] = heads.map(Attr::Int);
        let attrs = &[("heads", heads), ("kv_heads", kv_heads), ("head_dim", head_dim), ("scale", Attr::Float(scale))];
        self.one(Op { kind: "attention", inputs: &qkv, states: &[cache], out: &[name], attrs, ..Op::default() })
    }
    /// Chooses experts and returns ids and weights.
    pub fn route(&mut self, logits: &str, top_k: i64, gating: &'static str, normalize: bool) -> [String; 2] {
        let attrs = &[("top_k", Attr::Int(top_k)), ("gating", Attr::Text(gating)), ("normalize", Attr::Flag(normalize))];
        let out = self.op(Op { kind: "route", inputs: &[logits], out: &["ids", "weights"], attrs, ..Op::default() });
        [out[0].clone(), out[1].clone()]
    }
    pub fn experts(&mut self, name: &str, x: &str, ids: &str, weights: &str, bank: &str) -> String {
        self.one(Op { kind: "experts", inputs: &[x, ids, weights], bank, out: &[name], ..Op::default() })
    }
    pub fn add(&mut self, name: &str, x: &str, y: &str) -> String {
        self.one(Op { kind: "add", inputs: &[x, y], out: &[name], ..Op::default() })
    }

    /// Reads the keys rope.freq_base and rope.scaling.* with the defaults that models share.
    pub fn rope_scaling(&self, rotated: i64, trained_context: i64) -> Rope {
        let magnitude = self.float_or("rope.scaling.attn_factor", 1.0, -1e6, 1e6);
        let mut r = Rope { rotated, base: self.float_or("rope.freq_base", 1e4, 1e-3, 1e12), magnitude, ..Rope::default() };
        let factor = self.float_or("rope.scaling.factor", self.float_or("rope.scale_linear", 1.0, 1e-6, 1e6), 1e-6, 1e6);
        match self.text_or("rope.scaling.type", "linear").as_str() {
            "yarn" => {
                (r.scaling, r.factor) = ("yarn", factor);
                r.original_context = self.uint_or("rope.scaling.original_context_length", trained_context, 1, MAX_CONTEXT);
                r.magnitude *= 1.0 + 0.1 * factor.ln();
            }
            "linear" if factor != 1.0 => (r.scaling, r.factor) = ("linear", factor),
            "linear" | "none" => (),
            other => refuse(UNSUPPORTED, format!("key rope.scaling.type: expected linear, none or yarn, found {other:?}")),
        }
        r
    }
}

/// How rotary position encoding turns pairs of elements.
#[derive(Default)]
pub struct Rope {
    pub rotated: i64,
    pub base: f64,
    pub scaling: &'static str,
    pub factor: f64,
    pub original_context: i64,
    pub magnitude: f64,
}

/// One op, as docs/ops.md describes it.
#[derive(Default)]
pub struct Op<'a> {
    pub kind: &'a str,
    pub inputs: &'a [&'a str],
    pub weights: &'a [&'a str],
    pub states: &'a [&'a str],
    pub bank: &'a str,
    pub out: &'a [&'a str],
    pub attrs: &'a [(&'a str, Attr)],
}

/// An attribute. Those of value zero are left out, which means the default.
pub enum Attr {
    Int(i64),
    Float(f64),
    Text(&'static str),
    Flag(bool),
}

impl Attr {
    fn is_default(&self) -> bool {
        match self {
            Attr::Int(v) => *v == 0,
            Attr::Float(v) => *v == 0.0,
            Attr::Text(v) => v.is_empty(),
            Attr::Flag(v) => !v,
        }
    }
    fn write(&self, w: &mut Wire) {
        match self {
            Attr::Int(v) => w.number(2, *v as u64),
            Attr::Float(v) => {
                w.tag(3, 1);
                w.0.extend(v.to_le_bytes())
            }
            Attr::Text(v) => w.text(4, v),
            Attr::Flag(v) => w.number(5, *v as u64),
        }
    }
}
