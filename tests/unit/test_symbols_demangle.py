"""Names made readable, and cut down to what a user would type."""

import pytest

from causal.symbols.demangle import bare_name, base_name, demangle


@pytest.mark.parametrize(
    ("symbol", "readable"),
    [
        ("main", "main"),
        ("_start", "_start"),
        ("compress.part.0", "compress.part.0"),
        ("compress.lto_priv.0", "compress"),
        ("_Z4workid", "work(int, double)"),
        ("_ZN2ns5QueueIiE4pushERKi", "ns::Queue<int>::push(int const&)"),
        ("_ZNK1AclEii", "A::operator()(int, int) const"),
        ("_ZN12_GLOBAL__N_11fEv", "(anonymous namespace)::f()"),
        ("_ZN1AC1Ev", "A::A()"),
        ("_Z4workv.cold", "work() (.cold)"),
        ("_Z4workv.llvm.123456", "work()"),
        ("_ZNKSt7__cxx1112basic_stringIcE3strB5cxx11Ev", "std::__cxx11::basic_string<char>::str[abi:cxx11]() const"),
        # Rust, legacy scheme: the hash at the end is dropped, punctuation comes back
        ("_ZN4core3fmt9Formatter9write_str17h0123456789abcdefE", "core::fmt::Formatter::write_str"),
        (
            "_ZN71_$LT$Test$u20$$u2b$$u20$$u27$static$u20$as$u20$foo..Bar$LT$Test$GT$$GT$3bar17h930b740aa94f1d3aE",
            "<Test + 'static as foo::Bar<Test>>::bar",
        ),
        ("_ZN5tokio4task17h0123456789abcdefE.llvm.99", "tokio::task"),
        ("_ZN5tokio4task17h0123456789abcdefE.cold", "tokio::task (.cold)"),
        # Rust, v0 scheme
        ("_RNvCs15kBYyAo9fc_7mycrate7example", "mycrate::example"),
        ("_RNCNCNgCs6DXkGYLi8lr_2cc5spawn00B5_", "cc::spawn::{closure#0}::{closure#0}"),
        ("_RNvXs_NtC3foo3barNtB4_3BazNtNtC4core3fmt7Display3fmt", "<foo::bar::Baz as core::fmt::Display>::fmt"),
        ("_RINvNtC3std3mem8align_ofdE", "std::mem::align_of::<f64>"),
        # no names at all
        ("_Zinvalid", "_Zinvalid"),
        ("_Z", "_Z"),
        ("_R", "_R"),
        ("_Z3foo\0bar", "_Z3foo\0bar"),
        ("_ZN99foo17h0123456789abcdefE", "_ZN99foo17h0123456789abcdefE"),
        ("", ""),
    ],
)
def test_demangle(symbol, readable):
    assert demangle(symbol) == readable


@pytest.mark.parametrize(
    ("readable", "base", "bare"),
    [
        ("work", "work", "work"),
        ("work(int, double)", "work", "work"),
        ("void ns::apply<int, char>(int, char)", "ns::apply<int, char>", "ns::apply"),
        ("ns::Queue<int>::push(int const&)", "ns::Queue<int>::push", "ns::Queue::push"),
        ("A::operator()(int) const", "A::operator()", "A::operator()"),
        ("operator<<(std::ostream&, A const&)", "operator<<", "operator<<"),
        ("operator new[](unsigned long)", "operator new[]", "operator new[]"),
        ("A::operator->()", "A::operator->", "A::operator->"),
        ("A::operator unsigned long()", "A::operator unsigned long", "A::operator unsigned long"),
        ("(anonymous namespace)::f(int)", "(anonymous namespace)::f", "(anonymous namespace)::f"),
        ("void (*choose<int>())(int)", "choose<int>", "choose"),
        ("decltype(g()) f<3>()", "f<3>", "f"),
        ("f(int (*)())", "f", "f"),
        ("A::f() const &", "A::f", "A::f"),
        ("work(int) (.isra.0)", "work", "work"),
        ("main::'lambda'()::operator()() const", "main::'lambda'()::operator()", "main::'lambda'()::operator()"),
        ("int const A::g<int>() const", "A::g<int>", "A::g"),
        ("std::string::str[abi:cxx11]() const", "std::string::str[abi:cxx11]", "std::string::str[abi:cxx11]"),
        ("non-virtual thunk to A::f()", "non-virtual thunk to A::f()", "non-virtual thunk to A::f()"),
        ("foo::bar::<u8>", "foo::bar::<u8>", "foo::bar"),
        ("foo::bar::<u8>::{closure#0}", "foo::bar::<u8>::{closure#0}", "foo::bar::{closure#0}"),
        ("<A as B<C>>::f", "<A as B<C>>::f", "<A as B<C>>::f"),
        (")", ")", ")"),
        ("x>)<(", "x>)<(", "x>)"),
    ],
)
def test_names_as_typed(readable, base, bare):
    assert base_name(readable) == base
    assert bare_name(base) == bare
