"""Small programs in all the ways people build them, for comparing what is read of them with other tools.

C, C++ with templates, and Rust; gcc, clang and rustc; -O2, and -O3 with link-time optimisation; DWARF 4 and 5; with and
without PIE; ld and lld.
"""

import itertools
import shutil
import subprocess
from pathlib import Path

_C = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define SQUARE(x) ((x) * (x))
struct node { struct node *next; int value; };
static inline int inner(int x) { return SQUARE(x) + 1; }
static inline __attribute__((always_inline)) int outer(int x) { return inner(x) ^ inner(x + 7); }
static struct node *push(struct node *list, int value)
{
	struct node *fresh = malloc(sizeof(*fresh));
	if (!fresh)
		abort();
	fresh->next = list;
	fresh->value = outer(value);
	return fresh;
}
static int by_value(const void *a, const void *b)
{
	const int *x = a, *y = b;
	return *x < *y ? -1 : *x > *y;
}
__attribute__((noinline)) static int sum(const struct node *list)
{
	int total = 0, kept[64], count = 0;
	for (; list; list = list->next) {
		switch (list->value & 7) {
		case 0: total += outer(list->value); break;
		case 1: total -= inner(list->value); break;
		case 2: total ^= list->value << 3; break;
		case 3: total *= 3; break;
		default: if (count < 64) kept[count++] = list->value;
		}
	}
	qsort(kept, count, sizeof(*kept), by_value);
	for (int i = 0; i < count; i++)
		total += kept[i] * i;
	return total;
}
int further(int x);
int main(int argc, char **argv)
{
	struct node *list = NULL;
	for (int i = 0; i < argc * 100; i++)
		list = push(list, i + (int)strlen(argv[0]));
	printf("%d %d\\n", sum(list), further(argc));
	return 0;
}
"""
_C_FURTHER = """
static inline int twice(int x) { return 2 * x; }
int further(int x) { int y = 0; while (x--) y += twice(x) * twice(y ^ 5); return y; }
"""
_CPP = """
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>
template <typename T> struct Tree {
	struct Node { T value; std::unique_ptr<Node> left, right; explicit Node(T v) : value(std::move(v)) {} };
	std::unique_ptr<Node> root;
	void insert(T value) {
		auto *at = &root;
		while (*at)
			at = value < (*at)->value ? &(*at)->left : &(*at)->right;
		*at = std::make_unique<Node>(std::move(value));
	}
	template <typename F> void visit(F &&f) const { visit_from(root.get(), f); }
	template <typename F> static void visit_from(const Node *n, F &f) {
		if (!n) return;
		visit_from(n->left.get(), f);
		f(n->value);
		visit_from(n->right.get(), f);
	}
};
template <int N> constexpr int power(int x) { if constexpr (N == 0) return 1; else return x * power<N - 1>(x); }
int further(int x);
int main(int argc, char **)
{
	std::vector<int> v;
	for (int i = 0; i < argc * 1000; i++)
		v.push_back(power<5>(i) % 1009);
	std::sort(v.begin(), v.end(), [](int a, int b) { return (a ^ 21) < (b ^ 21); });
	Tree<std::string> tree;
	std::map<std::string, int> counts;
	for (int x : v) {
		tree.insert(std::to_string(x));
		counts[std::to_string(x % 17)] += x;
	}
	size_t length = 0;
	tree.visit([&](const std::string &s) { length += s.size(); });
	std::function<int(int)> f = [&](int x) { return x + (int)length; };
	std::cout << std::accumulate(v.begin(), v.end(), 0) << f(argc) << counts.size() << further(argc) << "\\n";
}
"""
_RUST = """
use std::collections::{BTreeMap, HashMap};
mod further { #[inline] pub fn twice(x: u64) -> u64 { x.wrapping_mul(2) ^ 5 } }
trait Shape { fn area(&self) -> u64; }
struct Square(u64);
struct Strip { a: u64, b: u64 }
impl Shape for Square { fn area(&self) -> u64 { self.0.wrapping_mul(self.0) } }
impl Shape for Strip { fn area(&self) -> u64 { further::twice(self.a).wrapping_mul(self.b) } }
fn total<T: Shape + ?Sized>(shapes: &[Box<T>]) -> u64 { shapes.iter().map(|s| s.area()).fold(0, u64::wrapping_add) }
fn main() {
    let n = std::env::args().count() as u64 * 1000;
    let mut v: Vec<u64> = (0..n).map(|x| x.wrapping_mul(7919) % 1001).collect();
    v.sort_by_key(|x| x ^ 21);
    let shapes: Vec<Box<dyn Shape>> = v.iter()
        .map(|&x| if x % 2 == 0 { Box::new(Square(x)) as Box<dyn Shape> } else { Box::new(Strip { a: x, b: 3 }) })
        .collect();
    let mut counts: HashMap<String, u64> = HashMap::new();
    let mut ordered = BTreeMap::new();
    for x in &v { *counts.entry(format!("{}", x % 17)).or_insert(0) += x; ordered.insert(*x, further::twice(*x)); }
    println!("{} {} {}", total(&shapes), counts.len(), ordered.values().copied().max().unwrap_or(0));
}
"""
_LINKERS = {"gcc": "ld", "g++": "ld", "clang": "lld", "clang++": "lld"}


def build_all(directory):
    """(what it is, path) of each program that this machine's compilers can build; those missing are named."""
    directory = Path(directory)
    for name, text in (("main.c", _C), ("further.c", _C_FURTHER), ("main.cc", _CPP), ("main.rs", _RUST)):
        (directory / name).write_text(text)
    (directory / "further.cc").write_text(_C_FURTHER)
    for number, (compiler, *what) in enumerate(_ways()):
        label = " ".join((compiler, *what))
        if shutil.which(compiler) is None:
            print(f"  {label}: {compiler} is not installed")
            continue
        program = directory / f"p{number}"
        done = subprocess.run(_command(compiler, *what, program), cwd=directory, capture_output=True, text=True)
        if done.returncode:
            print(f"  {label}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'cannot be built'}")
            continue
        yield label, str(program)


def _ways():
    yield from itertools.product(
        ("gcc", "clang", "g++", "clang++", "rustc"), ("-O2", "-O3 -flto"), ("DWARF 4", "DWARF 5"), ("PIE", "no PIE")
    )


def _command(compiler, optimised, dwarf, pie, program):
    version, is_pie = dwarf[-1], pie == "PIE"
    if compiler == "rustc":
        flags = ["-g", f"-Copt-level={optimised[2]}", f"-Cdwarf-version={version}"]
        flags += ["-Clto=fat"] if "lto" in optimised else []
        flags += [] if is_pie else ["-Crelocation-model=static"]
        return ["rustc", *flags, "-o", program, "main.rs"]
    sources = ["main.cc", "further.cc"] if compiler.endswith("++") else ["main.c", "further.c"]
    flags = [*optimised.split(), "-g", f"-gdwarf-{version}"]
    flags += ["-fPIE", "-pie"] if is_pie else ["-fno-pie", "-no-pie"]
    flags += ["-fuse-ld=lld"] if _LINKERS[compiler] == "lld" else []
    flags += ["-ffunction-sections", "-Wl,--gc-sections"]
    return [compiler, *flags, "-o", program, *sources]
