//! Compiling rules for system calls into the program that the kernel runs at every one of them.
//!
//! The rules become a binary search over the numbers of calls: for each call that exists the kernel
//! walks the program once when it is installed, and for those that depend on arguments at each call,
//! so that the length of a path is what costs. A list of the same rules takes ten times as long to
//! install, which is more than any other step of building a sandbox.

use std::collections::BTreeMap;

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Action(u32);

impl Action {
    const ALLOW: Self = Self(0x7fff_0000);
    const KILL: Self = Self(0x8000_0000);
    /// It answers `EPERM`.
    pub(super) const REFUSE: Self = Self(0x0005_0000 | libc::EPERM.unsigned_abs());
    /// It answers `ENOSYS`, as on a kernel that doesn't have it.
    pub(super) const MISSING: Self = Self(0x0005_0000 | libc::ENOSYS.unsigned_abs());
    /// The tracer decides; without one it answers `ENOSYS`.
    pub(super) const ASK_TRACER: Self = Self(0x7ff0_0000);
}

/// Something that may hold of the lower half of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    argument: u32,
    mask: u32,
    value: u32,
    holds_where_equal: bool,
}

impl Condition {
    pub(super) fn masked(argument: u32, mask: u32, value: u32) -> Self {
        Self {
            argument,
            mask,
            value,
            holds_where_equal: true,
        }
    }

    pub(super) fn masked_not(argument: u32, mask: u32, value: u32) -> Self {
        Self {
            holds_where_equal: false,
            ..Self::masked(argument, mask, value)
        }
    }

    pub(super) fn is(argument: u32, value: u32) -> Self {
        Self::masked(argument, u32::MAX, value)
    }

    pub(super) fn is_not(argument: u32, value: u32) -> Self {
        Self::masked_not(argument, u32::MAX, value)
    }

    pub(super) fn has_none_of(argument: u32, bits: u32) -> Self {
        Self::masked(argument, bits, 0)
    }

    pub(super) fn has_one_of(argument: u32, bits: u32) -> Self {
        Self::masked_not(argument, bits, 0)
    }
}

/// What happens to calls; what isn't named is allowed.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules(BTreeMap<u32, Rule>);

#[derive(Clone, Debug)]
enum Rule {
    Always(Action),
    /// Refused where all conditions of one of the lists hold.
    RefusedWhere(Vec<Vec<Condition>>),
}

impl Rules {
    /// Does this to these calls in any case.
    pub(super) fn always(&mut self, calls: &[i64], action: Action) {
        for call in calls {
            self.0.insert(number(*call), Rule::Always(action));
        }
    }

    /// Refuses a call where all conditions of one of the lists hold.
    pub(super) fn refuse_where(&mut self, call: i64, lists: Vec<Vec<Condition>>) {
        self.0.insert(number(call), Rule::RefusedWhere(lists));
    }

    /// The program: `struct sock_filter`s as they lie in memory.
    pub(super) fn compile(&self) -> Vec<u8> {
        /// Calls with this bit are of the x32 interface, which nothing uses; a filter that forgets
        /// it sees other numbers.
        const X32: u32 = 0x4000_0000;
        const X86_64: u32 = 0xc000_003e;
        const ARCHITECTURE_AT: u32 = 4;
        const NUMBER_AT: u32 = 0;

        let mut program = vec![
            Instruction::load(ARCHITECTURE_AT),
            Instruction::skip_if_equal(X86_64, 1),
            Instruction::end(Action::KILL),
            Instruction::load(NUMBER_AT),
            Instruction::skip_if_less(X32, 1),
            Instruction::end(Action::REFUSE),
        ];
        let rules: Vec<(u32, &Rule)> = self.0.iter().map(|(call, rule)| (*call, rule)).collect();
        program.extend(search(&rules));
        program.into_iter().flat_map(Instruction::bytes).collect()
    }
}

/// The number of a call; there are a few hundred.
fn number(call: i64) -> u32 {
    u32::try_from(call).unwrap_or(u32::MAX)
}

/// Finds the rule for the number that is loaded, and follows it.
fn search(rules: &[(u32, &Rule)]) -> Vec<Instruction> {
    let (below, above) = rules.split_at(rules.len() / 2);
    match (below, above) {
        ([], []) => vec![Instruction::end(Action::ALLOW)],
        ([], [(call, rule)]) => {
            let mut program = vec![
                Instruction::skip_if_equal(*call, 1),
                Instruction::end(Action::ALLOW),
            ];
            program.extend(follow(rule));
            program
        }
        (_, [(first_above, _), ..]) => {
            let below = search(below);
            let mut program = vec![
                Instruction::skip_if_less(*first_above, 1),
                Instruction::skip(below.len()),
            ];
            program.extend(below);
            program.extend(search(above));
            program
        }
        // The upper half is never the smaller one.
        (_, []) => search(below),
    }
}

fn follow(rule: &Rule) -> Vec<Instruction> {
    let lists = match rule {
        Rule::Always(action) => return vec![Instruction::end(*action)],
        Rule::RefusedWhere(lists) => lists,
    };
    let mut program = Vec::new();
    for list in lists {
        let mut rest = vec![Instruction::end(Action::REFUSE)];
        // From the end, where it is known how far it is to the next list.
        for condition in list.iter().rev() {
            let test = condition.test(rest.len());
            rest.splice(0..0, test);
        }
        program.extend(rest);
    }
    program.push(Instruction::end(Action::ALLOW));
    program
}

impl Condition {
    /// Goes on where it holds, and otherwise skips so many instructions.
    fn test(self, otherwise: usize) -> [Instruction; 3] {
        const ARGUMENTS_AT: u32 = 16;
        [
            Instruction::load(ARGUMENTS_AT + 8 * self.argument),
            Instruction::and(self.mask),
            Instruction::go_on_if(self.value, self.holds_where_equal, otherwise),
        ]
    }
}

/// The kernel's `struct sock_filter`: an operation, how far to jump where it is true and where it
/// isn't, and a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction(u16, u8, u8, u32);

impl Instruction {
    const LOAD: u16 = 0x20;
    const AND: u16 = 0x54;
    const JUMP: u16 = 0x05;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const JUMP_IF_NOT_LESS: u16 = 0x35;
    const RETURN: u16 = 0x06;

    fn load(offset: u32) -> Self {
        Self(Self::LOAD, 0, 0, offset)
    }

    fn and(mask: u32) -> Self {
        Self(Self::AND, 0, 0, mask)
    }

    fn skip(count: usize) -> Self {
        Self(Self::JUMP, 0, 0, u32::try_from(count).unwrap_or(u32::MAX))
    }

    fn skip_if_equal(value: u32, count: u8) -> Self {
        Self(Self::JUMP_IF_EQUAL, count, 0, value)
    }

    fn skip_if_less(value: u32, count: u8) -> Self {
        Self(Self::JUMP_IF_NOT_LESS, 0, count, value)
    }

    /// Goes on where the value is equal, or where it is not, and otherwise skips so many; a rule is
    /// a few instructions.
    fn go_on_if(value: u32, equal: bool, otherwise: usize) -> Self {
        let otherwise = u8::try_from(otherwise).unwrap_or(u8::MAX);
        if equal {
            Self(Self::JUMP_IF_EQUAL, 0, otherwise, value)
        } else {
            Self(Self::JUMP_IF_EQUAL, otherwise, 0, value)
        }
    }

    fn end(action: Action) -> Self {
        Self(Self::RETURN, 0, 0, action.0)
    }

    fn bytes(self) -> [u8; 8] {
        let [code_low, code_high] = self.0.to_le_bytes();
        let [a, b, c, d] = self.3.to_le_bytes();
        [code_low, code_high, self.1, self.2, a, b, c, d]
    }
}
