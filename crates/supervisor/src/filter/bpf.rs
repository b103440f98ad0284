//! Compiles system call rules to the BPF program that the kernel runs for every system call.
//!
//! The program is a binary search over the numbers.

use std::collections::BTreeMap;

/// The outcome of a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Action(u32);

impl Action {
    const ALLOW: Self = Self(0x7fff_0000);
    const KILL: Self = Self(0x8000_0000);
    /// Fails with `EPERM`.
    pub(super) const REFUSE: Self = Self(0x0005_0000 | libc::EPERM.unsigned_abs());
    /// Fails with `ENOSYS`, as on a kernel without the call.
    pub(super) const MISSING: Self = Self(0x0005_0000 | libc::ENOSYS.unsigned_abs());
    /// Asks the tracer; fails with `ENOSYS` without one.
    pub(super) const ASK_TRACER: Self = Self(0x7ff0_0000);
}

/// A condition on the lower half of an argument.
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

/// The rules of a filter. Calls without a rule are allowed up to [`LAST_REVIEWED`], and missing above.
#[derive(Clone, Debug, Default)]
pub(super) struct FilterRules(BTreeMap<u32, CallRule>);

/// The last system call that these rules have been reviewed for (`rseq_slice_yield`, Linux 7.0). Programs
/// must handle `ENOSYS` for newer ones.
pub(super) const LAST_REVIEWED: u32 = 471;

#[derive(Clone, Debug)]
enum CallRule {
    Always(Action),
    /// Refused if all conditions of one of the lists hold.
    RefusedIf(Vec<Vec<Condition>>),
}

impl FilterRules {
    /// Sets the outcome of calls.
    pub(super) fn always(&mut self, calls: &[i64], action: Action) {
        for call in calls {
            self.0.insert(number(*call), CallRule::Always(action));
        }
    }

    /// Refuses a call if all conditions of one of the lists hold.
    pub(super) fn refuse_if(&mut self, call: i64, lists: Vec<Vec<Condition>>) {
        self.0.insert(number(call), CallRule::RefusedIf(lists));
    }

    /// Compiles the program: `struct sock_filter`s in memory layout.
    pub(super) fn compile(&self) -> Vec<u8> {
        /// The bit of the x32 interface, which is unused. A filter that ignores it can be bypassed.
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
            Instruction::skip_if_less(LAST_REVIEWED + 1, 1),
            Instruction::end(Action::MISSING),
        ];
        let rules: Vec<(u32, &CallRule)> =
            self.0.iter().map(|(call, rule)| (*call, rule)).collect();
        program.extend(search(&rules));
        program.into_iter().flat_map(Instruction::bytes).collect()
    }
}

/// Converts the number of a call, of which there are a few hundred.
fn number(call: i64) -> u32 {
    u32::try_from(call).unwrap_or(u32::MAX)
}

/// Searches the rule for the number in the accumulator, and evaluates it.
fn search(rules: &[(u32, &CallRule)]) -> Vec<Instruction> {
    let (below, above) = rules.split_at(rules.len() / 2);
    match (below, above) {
        ([], []) => vec![Instruction::end(Action::ALLOW)],
        ([], [(call, rule)]) => {
            let mut program = vec![
                Instruction::skip_if_equal(*call, 1),
                Instruction::end(Action::ALLOW),
            ];
            program.extend(evaluate(rule));
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
        // Unreachable: the upper half is never the smaller one.
        (_, []) => search(below),
    }
}

fn evaluate(rule: &CallRule) -> Vec<Instruction> {
    let lists = match rule {
        CallRule::Always(action) => return vec![Instruction::end(*action)],
        CallRule::RefusedIf(lists) => lists,
    };
    let mut program = Vec::new();
    for list in lists {
        let mut rest = vec![Instruction::end(Action::REFUSE)];
        // Backwards, because a test needs the distance to the next list.
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
    /// Continues if the condition holds, and otherwise skips so many instructions.
    fn test(self, otherwise: usize) -> [Instruction; 3] {
        const ARGUMENTS_AT: u32 = 16;
        [
            Instruction::load(ARGUMENTS_AT + 8 * self.argument),
            Instruction::and(self.mask),
            Instruction::continue_if(self.value, self.holds_where_equal, otherwise),
        ]
    }
}

/// The kernel's `struct sock_filter`: operation, jump distance if true, jump distance if false, value.
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

    /// Continues if the equality is as expected, and otherwise skips so many instructions.
    fn continue_if(value: u32, equal: bool, otherwise: usize) -> Self {
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
