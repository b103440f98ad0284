use cantle_core::ledger::CallPurpose;
use cantle_core::llm::Prices;
use cantle_core::usage::TokenUsage;

use super::*;

fn tokens(tokens: u64) -> ModelCall {
    let usage = TokenUsage {
        input: tokens,
        ..TokenUsage::default()
    };
    ModelCall::new("model", CallPurpose::Turn, usage, Duration::ZERO)
}

fn state(resource: Resource, spent: f64, limit: f64) -> BudgetState {
    BudgetState {
        resource,
        spent,
        limit,
    }
}

#[test]
fn each_notice_is_given_once_and_exhaustion_is_not_preceded_by_a_warning() {
    let account = Account::new(Budget::default().tokens(100), None);
    account.model_call(&tokens(79));
    assert_eq!(account.notices(), []);
    account.model_call(&tokens(1));
    let near = state(Resource::Tokens, 80.0, 100.0);
    assert_eq!(account.notices(), [near]);
    account.model_call(&tokens(10));
    assert_eq!(account.notices(), []);
    account.model_call(&tokens(20));
    let spent = state(Resource::Tokens, 110.0, 100.0);
    assert_eq!(account.notices(), [spent]);
    assert_eq!(account.notices(), []);

    let account = Account::new(Budget::default().tokens(100), None);
    account.model_call(&tokens(500));
    let spent = state(Resource::Tokens, 500.0, 100.0);
    assert_eq!(account.notices(), [spent]);
}

#[test]
fn spending_of_sub_agents_counts_above_and_every_run_is_notified() {
    let above = Arc::new(Account::new(Budget::default().tool_calls(2), None));
    let below = [(); 2].map(|()| {
        let budget = Budget::default().tool_calls(5);
        Account::new(budget, Some(Arc::clone(&above)))
    });
    for account in &below {
        account.tool_call();
    }
    let spent = state(Resource::ToolCalls, 2.0, 2.0);
    for account in below.iter().chain([&*above]) {
        assert_eq!(account.notices(), [spent]);
        assert_eq!(account.notices(), []);
    }
    // Its own budget is not the one above.
    for _ in 0..4 {
        below[0].tool_call();
    }
    let own = state(Resource::ToolCalls, 5.0, 5.0);
    assert_eq!(below[0].notices(), [own]);
    assert_eq!(below[1].notices(), []);
}

#[tokio::test(start_paused = true)]
async fn the_time_left_is_the_minimum_including_earlier_processes() {
    let limit = |seconds| Budget::default().time(Duration::from_secs(seconds));
    let above = Arc::new(Account::new(limit(100), None));
    let account = Account::new(limit(50), Some(above));
    let earlier = Duration::from_secs(20);
    account.carry_over(&Ledger::default(), &[&ModelInfo::new("model")], earlier);
    tokio::time::advance(Duration::from_secs(10)).await;
    let (left, state) = account.time_left(Duration::ZERO).unwrap();
    assert_eq!((left.as_secs(), state.limit), (20, 50.0));
    let (left, _) = account.time_left(Duration::from_secs(60)).unwrap();
    assert_eq!(left.as_secs(), 80);
    tokio::time::advance(Duration::from_secs(25)).await;
    let (left, _) = account.time_left(Duration::ZERO).unwrap();
    assert_eq!(left, Duration::ZERO);
    let none = Account::new(Budget::default().tokens(1), None);
    assert_eq!(none.time_left(Duration::ZERO), None);
    let endless = Account::new(Budget::default().time(Duration::MAX), None);
    let (left, _) = endless.time_left(Duration::from_secs(60)).unwrap();
    assert!(left > Duration::MAX / 2, "{left:?}");
}

#[test]
fn an_earlier_process_counts_with_its_sub_agents() {
    let mut child = Ledger::default();
    child.record_tool("look", true, Duration::ZERO, None);
    child.model_calls.push(tokens(7));
    let mut ledger = Ledger::default();
    ledger.record_tool("child", true, Duration::ZERO, None);
    let mut call = tokens(3);
    call.estimated = true;
    call.cost_usd = Some(0.5);
    ledger.model_calls.push(call);
    ledger.sub_agents.insert("child".to_owned(), vec![child]);

    let budget = Budget::default().tokens(10).tool_calls(2).cost_usd(0.5);
    let account = Account::new(budget, None);
    account.carry_over(&ledger, &[&ModelInfo::new("model")], Duration::ZERO);
    let expected = [
        state(Resource::Tokens, 10.0, 10.0),
        state(Resource::CostUsd, 0.5, 0.5),
        state(Resource::ToolCalls, 2.0, 2.0),
    ];
    assert_eq!(account.notices(), expected);
}

#[test]
fn calls_that_an_earlier_process_refused_do_not_count() {
    let mut ledger = Ledger::default();
    ledger.record_tool("look", true, Duration::ZERO, None);
    for _ in 0..9 {
        ledger.record_refused("look");
    }
    let account = Account::new(Budget::default().tool_calls(2), None);
    account.carry_over(&ledger, &[&ModelInfo::new("model")], Duration::ZERO);
    assert_eq!(account.notices(), []);
}

#[test]
fn calls_of_unknown_cost_of_an_earlier_process_have_the_prices_known_now() {
    let mut other = tokens(1_000_000);
    other.model = "other".to_owned();
    let mut child = Ledger::default();
    child.model_calls.push(other);
    let mut ledger = Ledger::default();
    ledger.model_calls.push(tokens(1_000_000));
    ledger.sub_agents.insert("child".to_owned(), vec![child]);
    let mut model = ModelInfo::new("model");
    model.prices = Some(Prices::per_million(2.0, 10.0));
    let mut child_model = ModelInfo::new("other");
    child_model.prices = Some(Prices::per_million(3.0, 10.0));
    for (models, cost) in [(&[&model][..], 2.0), (&[&model, &child_model], 5.0)] {
        for (limit, is_exhausted) in [(cost - 0.1, true), (cost + 0.1, false)] {
            let account = Account::new(Budget::default().cost_usd(limit), None);
            account.carry_over(&ledger, models, Duration::ZERO);
            assert_eq!(account.is_exhausted(), is_exhausted);
        }
    }
}

#[test]
fn an_unknown_cost_affects_budgets_of_money_here_and_above() {
    let above = Arc::new(Account::new(Budget::default().cost_usd(5.0), None));
    let own = Account::new(Budget::default(), Some(Arc::clone(&above)));
    let mut known = tokens(7);
    known.cost_usd = Some(0.1);
    own.model_call(&known);
    own.model_call(&tokens(0));
    assert_eq!(own.model_without_cost(), None);
    assert!(!own.is_exhausted());
    own.model_call(&tokens(7));
    for account in [&own, &above] {
        assert_eq!(account.model_without_cost(), Some(tokens(7).model));
        assert!(account.is_exhausted() && account.limits_money());
    }
    let none = Account::new(Budget::default().tokens(1000), None);
    none.model_call(&tokens(7));
    assert_eq!(none.model_without_cost(), None);
    assert!(!none.limits_money());
}
