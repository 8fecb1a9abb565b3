"""What a report says of its run in words: how it was made, what was measured, and what devices sent."""

from collections.abc import Mapping
from math import isinf
from typing import Any

from fedgram import __version__
from fedgram.distill.refit.refit import DEFAULT_NORM, RefitOptions
from fedgram.pipeline.baseline_stage import NOT_PRUNED
from fedgram.pipeline.config import RunConfig
from fedgram.pipeline.model_names import BASELINE, FINAL, MIXED, POOLED
from fedgram.privacy.ledger import Budget, Entry, Ledger, ledger_facts, operations_in_words, total_in_words
from fedgram.privacy.options import PrivacyOptions
from fedgram.report.published import LANGUAGES
from fedgram.training.options import FedAvgOptions

Told = Mapping[str, Any]  # what the stages wrote, by the names of their JSON files


def about(config: RunConfig, told: Told) -> dict[str, Any]:
    """The run in a table."""
    people, found, final = told["population"], told["evaluation"], told["final"]
    facts: dict[str, Any] = {
        "language": LANGUAGES[config.population.language],
        **(_on_devices(told) if config.population.is_on_devices else _users(config, people)),
        "evaluated on": f"{found['users']:,} {whom(found)}, {found['words']:,} typed words",
        f"held-out {found.get('measured_on', 'users')}": measured(told),
    }
    for name in ("R_W", "R_P"):
        if name in told:
            network = told[name]
            kind = f"{network['preset']}, " if network["preset"] else ""
            facts[f"network {name}"] = f"{kind}{network['parameters']:,} parameters, {_trained(network)}"
    facts["size limit"] = f"{config.budget.max_ngrams:,} n-grams per model, baselines included"
    facts["pruning of the baselines"] = _pruning(told["baselines"], final.get("measured_on", "users"))
    if POOLED in told["baselines"]:
        facts["pooled-text upper bound"] = _upper_bound(told)
    if "refit" in told:
        counted = told["refit"]
        facts["refit"] = (
            f"{counted['passes'][-1]['reports']:,} devices counted {counted['words_counted']:,} words in "
            f"{counted['ngrams_counted']:,} n-grams{', with noise' * config.privacy.is_dp}"
        )
    return facts | {
        "distillation": f"{config.distillation.samples:,} samples per network",
        "final model": f"{final['chosen']}, the best on dev {final.get('measured_on', 'users')} "
        f"({final['dev_top1'][final['chosen']]:.2f} % top-1; "
        f"the baseline has {final['dev_top1'][BASELINE]:.2f} %)",
        "lm.fgram": f"{told['package']['bytes'] / 1e6:.2f} MB, {told['package']['ngrams']:,} n-grams, "
        f"{told['package']['words']:,} words",
        "seed": str(config.seed),
        "fedgram": __version__,
    }


def _users(config: RunConfig, people: Mapping[str, int]) -> dict[str, str]:
    source = "read from a file" if config.population.users else "synthetic"
    users = f"{people['train_users']:,} train, {people['dev_users']:,} dev, {people['test_users']:,} test; {source}"
    return {"users": users, "text of all users": f"{people['sentences']:,} sentences, {people['words']:,} words"}


def _on_devices(told: Told) -> dict[str, str]:
    """What a run without users at the server measured on devices, and what it could not."""
    curves = ", ".join(name for name in ("R_W", "R_P") if told.get(name, {}).get("dev"))
    return {
        "users": "none at the server, which has a supplement and a whitelist; devices keep their text",
        "measured on devices": (f"SLL^e of {curves} during training, " if curves else "")
        + "the choice of the final model (dev arm), and all figures of this report (its arm is named below)",
        "not measured": "models of pooled text, which need users' text in one place"
        + ("" if "clipping" in told else "; Table 1"),
        "next": "fedgram federation publish sends lm.fgram to devices; fedgram federation experiment compares it with "
        "the model they have, on what people type from then on",
        "n-gram models on devices": "packed, as phones have them",
    }


def whom(evaluation: Told) -> str:
    """On whom results are measured."""
    if evaluation.get("measured_on") == "devices":
        return f"devices of the {evaluation['split']} arm"
    return f"{evaluation['split']} users"


def measured(told: Told) -> str:
    """How often the users of the evaluation were measured in this workspace, and what that means."""
    split, times = told["evaluation"]["split"], told["evaluation"]["measured"]
    counted = f"{whom(told['evaluation'])} were measured {_times(times)} by the stage evaluation"
    if "clipping" in told:
        counted += f" and {_times(told['clipping']['measured'])} by the stage clipping"
        times = max(times, told["clipping"]["measured"])
    if split != "test":
        return f"{counted}; models are trained or chosen on them, so these figures are too favourable"
    if times == 1:
        return f"{counted}, after all choices were made on dev {told['evaluation'].get('measured_on', 'users')}"
    return f"{counted} in this workspace; a choice made after the first time may be fitted to them"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _pruning(baselines: Told, dev: str) -> str:
    """The rule of each baseline."""
    rules = "; ".join(
        f"{name}: {'was within the limit' if found['rule'] == NOT_PRUNED else found['rule']}"
        for name, found in baselines.items()
    )
    return (
        "by relative entropy, with the probabilities of histories by the rule that is best for each model on dev "
        f"{dev}. {rules}"
    )


def _upper_bound(told: Told) -> str:
    levels = {name: model["top1"]["value"] for name, model in told["evaluation"]["uncased"]["models"].items()}
    text = f"{levels[POOLED]:.2f} % top-1, by an n-gram model of the pooled text with the same size limit."
    gain, most = levels[FINAL] - levels[BASELINE], levels[POOLED] - levels[BASELINE]
    if gain > 0 and most > 0:
        text += f" The final model closes {100 * gain / most:.0f} % of the gap between the baseline and this bound."
    share = told["baselines"][MIXED]["share"]
    return text + f" {MIXED}: interpolated with the baseline, which has a share of {share:g}."


def _trained(network: Mapping[str, Any]) -> str:
    if network.get("given"):
        return "trained outside this run"
    if not network["dev"]:
        return f"{len(network['loss'])} rounds, the weights of the last one; not scored"
    best = next((p for p in network["dev"] if p["round"] == network["best_round"]), network["before"])
    return (
        f"{len(network['loss'])} rounds, SLL^e per dev sentence {network['before']['sll_e']:.2f} → {best['sll_e']:.2f} "
        f"(round {network['best_round']})"
    )


def ways(config: RunConfig) -> dict[str, str]:
    """How the models of Tables 3 and 4 were made."""
    ours = (
        "the network of words is counted without capitals, and A_W adds them afterwards, as for word pieces"
        if config.distillation.uncased_first
        else "CapSampleApprox on the network of words, with p_cap = A_W for all models and our own rules for capitals"
    )
    paper = (
        "Algorithm 1 as printed: CapSampleApprox on the network of words, and p_cap is the model that NN2WFA is given: "
        "A_W for A_W_e, A_W_i and A_P_e, A_W_i for A_P_i, and the interpolated model for A_W_r and A_P_r"
    )
    return {"ours": ours, "paper": paper} if config.paper_way.run else {"ours": ours}


def privacy(config: RunConfig, told: Told) -> dict[str, Any]:
    """What devices sent, and what came of it."""
    u = told["unigrams"]
    clip = "any number of words" if u["clip"] is None else f"at most {u['clip']:,g} words"
    trained = {
        name: section.training
        for name, section in (("R_W", config.words), ("R_P", config.pieces))
        if name in told and not told[name].get("given")
    }
    sent = "; ".join(f"for {name}, {_norm(t)}, {told[name]['reports']:,} reports summed" for name, t in trained.items())
    most = u.get("participations", 1)
    again = f"; a simulated device stands for many devices, and took part in up to {most:,} rounds" if most > 1 else ""
    asked = "devices send nothing more"
    if config.refit.run:
        asked = "only the refit asks devices again"
    facts = {
        "unigrams": f"each device sends counts of whitelisted words, {clip} per report; {u['reports']:,} reports summed"
        + again,
        "networks": f"each device sends a change of the weights: {sent}" if trained else "trained outside this run",
        "n-gram models": f"computed from the networks' samples and the sums; {asked}",
        **_held_out(config),
        **_noise(config, told),
    }
    if config.refit.run:
        facts["refit"] = _counted_ngrams(config.refit, config.privacy, told["refit"])
    if config.baselines.pooled:
        facts["pooled baselines"] = "trained on the train users' text, only for comparison"
    if config.privacy.is_dp and not config.population.is_on_devices:
        facts["outside the account"] = (
            "Table 1, Figure 4's networks that are not distilled, and models of pooled text: they use the train users' "
            "text without noise, only for comparison, and only a simulation can make them"
        )
    return facts


def _held_out(config: RunConfig) -> dict[str, str]:
    if not config.population.is_on_devices:
        return {"dev and test users": "not used for training, only for model selection and evaluation"}
    p, noise = config.privacy, "without noise"
    if p.is_dp:
        noise = f"which get noise: all evaluations of an arm together cost at most ε = {p.epsilon:g} at δ = {p.delta:g}"
    return {
        "dev and test arms": "each device knows its own arm; they never count or train. For each evaluation a device "
        f"sends, once, sums of hits, words, OOV words, log-likelihoods and taps of the models, {noise}"
    }


def _noise(config: RunConfig, told: Told) -> dict[str, str]:
    """What the run spent of its users' privacy: the operations of all stages, composed."""
    stages = (told.get(stage, {}) for stage in ("unigrams", "R_W", "R_P", "refit"))
    entries = {(e["name"], e["run"]): Entry.from_json(e) for stage in stages for e in stage.get("ledger", ())}
    if not entries:
        unused = "not used in this run: devices are simulated, and a server would see each report"
        if config.population.is_on_devices:
            unused = "no noise was added; sums are masked if the federation says so (masked_with in federation.toml)"
        return {"noise, secure aggregation": unused}
    budget = Budget(config.privacy.epsilon, config.privacy.delta) if config.privacy.is_dp else None
    found = ledger_facts(Ledger.of(entries.values(), budget), config.privacy.delta)
    lines = {f"noise: {name}": line for name, line in operations_in_words(found).items()}
    return {"privacy spent, per user": total_in_words(found), **lines}


def _norm(training: FedAvgOptions) -> str:
    return "of any norm" if isinf(training.update_norm) else f"clipped to the norm {training.update_norm:g}"


def _counted_ngrams(config: RefitOptions, privacy: PrivacyOptions, told: Told) -> str:
    """What devices send in the refit, and what the result may reveal."""
    passes = told["passes"]
    sizes = [p["bytes_per_report"] / 1000 for p in passes if "bytes_per_report" in p]
    per_report = f", {', '.join(f'{size:,.1f}' for size in sizes)} KB per report" if sizes else ""
    text = f"in {len(passes)} passes, each device sends "
    if config.pairs and not privacy.is_dp:
        text += "marks in a sketch of its word pairs, and "
    text += "counts of n-grams that the server proposes, " + (
        "scaled to a limit on their norm" if privacy.is_dp else _count_limits(config)
    )
    text += f"; {passes[-1]['reports']:,} devices{per_report}; "
    return (
        text
        + {
            "dp": "every count gets noise, and what stands out from it may join the model",
            "threshold": f"an n-gram joins the model if at least {privacy.min_devices} devices have it, and one that "
            f"the network learned stays if it is public or at least {privacy.network_devices} devices have it",
            "none": "an n-gram that was added may come from a single device",
        }[privacy.protection]
    )


def _count_limits(config: RefitOptions) -> str:
    words, norm = config.clip, config.norm or DEFAULT_NORM
    limits = [] if isinf(words) else [f"at most {words:,g} words per pass"]
    limits += [] if isinf(norm) else [f"scaled to a norm of at most {norm:,g}"]
    return ", ".join(limits) or "without limits"
