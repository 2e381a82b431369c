"""Templates of all sentences of an answer, for every place where it is shown.

A field is a value or an attribute of one, and its format may be a unit: `{gpu.seconds:time}`.
What is in square brackets is left out if a value in it is not known, 0 or empty.
"""

from __future__ import annotations

NOTHING = "n/a"
THE_SAME = "the same"

TEMPLATES = {
    # The phrase that begins an answer, by its question and word.
    "the GPU here: Yes": "Yes, use {gpu}",
    "the GPU here: No": "No, use the CPU",
    "the GPU here: Close call": "Close call, CPU or {name}",
    "the GPU here: Can't tell": "Can't tell yet, CPU or {name}",
    "renting: Probably yes": "Probably yes, rent {gpu}",
    "renting: No": "No, don't rent",
    "renting: Close call": "Close call, renting {gpu}",
    "renting: Can't tell": "Can't tell yet if renting {gpu} pays",
    "using: Probably yes": "Probably yes, use {gpu}",
    "using: No": "No, use the CPU",
    "using: Close call": "Close call, CPU or {name}",
    "using: Can't tell": "Can't tell yet, CPU or {name}",
    "any GPU: No": "No GPU will help",
    "any GPU: Can't tell": "Can't tell",
    # The first line: the phrase, the time here, the time there with a machine's setup.
    "no by start-up": "{phrase}: {share:.0%} of the {here} is start-up (at most "
    "{limit:limit} faster).",
    "no by loading": "{phrase}: {here}, and data loading is {share:.0%} of each epoch (at most "
    "{limit:limit} faster).",
    "too short to rent": "{phrase}: {here}, so[ after {worth.terms.start_seconds:time} of setup] a "
    "GPU saves at most {most:time} (minimum {worth.terms.worth_seconds:time}).",
    "shorter than setup": "{phrase}: {here}, and setting up a machine takes "
    "{worth.terms.start_seconds:time}.",
    "not worth it": "{phrase}: {here}, {there} on {gpu}[ {setup}].[ {saves:cap}.][ {waits}.]",
    "worth it": "{phrase}: {here}, {there} there[ {setup}][, {cost}].[ {waits}.]",
    "close call": "{phrase}: {here}, {there} there[ {setup}][, {cost}][, {speedup}].[ "
    "{saves:cap}.][ {waits}.]",
    "can't tell": "{phrase}: {here}, {there} there[ {setup}][, {speedup}].[ {unknown:cap}.][ "
    "{waits}.]",
    "no estimate": "{phrase}: {here}, but no GPU estimate ({unknown}).",
    "GPU yes": "{phrase}: {here}, {there} on the GPU, {speedup}.[ {cause:cap}.]",
    "only a GPU": "{phrase}: {there:time} a step, and no step finished in {here:time} on the CPU "
    "({least} faster or more).",
    "GPU no": "{phrase}: {here}, {there} on {gpu}, {speedup}.[ {cause:cap}.]",
    "GPU close call": "{phrase}: {here}, {there} on the GPU, {speedup}.",
    "GPU can't tell": "{phrase}: {here}, {there} on the GPU, {speedup}.[ {unknown:cap}.]",
    "outdated": "The script has changed since: `photofinish run` times it again.",
    # Its times.
    "here": "here",
    "on the CPU": "on the CPU",
    "with setup": "including {worth.terms.start_seconds:time} of setup",
    "busy": "[{at_most} ]{mark}{busy:time}[ {place}], as busy as when measured",
    "busy or idle": "[{at_most} ]{mark}{idle:time}[ {place}] when idle, {mark}{busy:time} as busy "
    "as when measured",
    "time at": "[{at_most} ]{time}[ {place}]",
    "at most": "at most",
    "of a sweep": "{time}, for the sweep's {jobs:n job}",
    "of all seeds": "{time}, for all seeds",
    "unsure": "very rough",
    "not known there": "an unknown time",
    "at least": "at least {least}",
    "at least faster": "at least {least} faster",
    "faster by": "{speedup} faster[ ({ends})]",
    "slower by": "{speedup} slower[ ({ends})]",
    "about as fast": "a speed-up of {speedup} ({ends})",
    "wide": "the range is over 12x wide",
    "saves": "saves {gained}[ (minimum {worth.terms.worth_seconds:time})]",
    "gain unknown": "how much it saves is not known",
    "cost of machine": "{cost} ({gpus}-GPU machine)",
    "waits for data": "The GPU would wait for data {share:.0%} of the time",
    "waits for launches": "Launching kernels would take most of the GPU's time",
    # Why an answer is open.
    "slow kernels": "this CPU runs {precision} at {slow.share:.1%} of its fp32 speed",
    "uncounted": "no formula for the operator {names}",
    "nothing recorded": "params.yaml lists no GPUs, and reference/ has no record of one",
    "none fits": "a step needs about {needed} GiB, and {gpu} has {memory:g}",
    "none estimated": "there are no estimates for {gpus:list}",
    # The share of a job, an epoch or a step that takes most of its time.
    "share of start-up": "{share:.0%} of the job is start-up",
    "share of loader": "data loading is {share:.0%} of each epoch",
    "share of waiting": "waiting for batches is {share:.0%} of each epoch",
    "share of copying": "copying to the GPU is {share:.0%} of each epoch",
    "share of launching": "launch overhead is {share:.0%} of each step",
    "share of arithmetic": "{share:.0%} of each step is compute",
    "likely share": "probably {cause}",
    # The second line: what to do.
    "next": "Next: {action}[ Same model: {model}.]",
    "use the GPU": "train on {gpu}.",
    "use the CPU": "train on the CPU.",
    "use either": "use whichever is free.",
    "rent": "{rent}.",
    "rent by command": "`photofinish rent {action.accelerator}[ -- {command}]` prints how, and "
    "starts nothing",
    "change a setting": "set `{setting}`: ~{gain} faster on this {device}[ ({ends})], {how}.",
    "fewer epochs": "set `epochs: {fewer.epochs}`, where {score}. The job gets {gain} faster.",
    "target reached": "validation accuracy reached its target ({fewer.accuracy:.1%})",
    "best reached": "validation accuracy peaked at {fewer.accuracy:.1%}",
    "measure again": "when the machine is idle, `{command}` (up to {took:time}).",
    "measure longer": "set `time_limit: {limit} s` in params.yaml (trains {more:time} longer).",
    "sample longer": "ask again with `--seconds {limit}` ({more:time} more).",
    "train longer": "let the command train longer.",
    "ask again": "ask again when the machine is idle ({took:time}).",
    "ask when mended": "fix what ended the command after {seen} ({ended}), then ask again.",
    "try a GPU": "run it once on {gpu}.",
    "try a rented GPU": "time it on {gpu}[ ({price})]: {rent}.",
    "compare in fp32": "compare in `precision: fp32`, which is fair to this CPU.",
    "stay here": "stay on this CPU.",
    "stay here for few": "stay on this CPU. {runs}.",
    "rent for some": "for one run, stay on this CPU; for {action.runs.surely} or more, {rent}.",
    "runs": "Renting pays off after {runs} runs",
    "your own GPU": "On {gpu} of your own: {speedup}.",
    # The second line: whether the model is the same.
    "a script's model": "not checked, as no first step was recorded on both devices",
    "on a rented GPU": "{text}* on a {gpu}",
    "identical": "yes, bit for bit (first step)",
    "same step": "yes, within rounding (first step)",
    "other step": "no, the first step differs ({it.layer})",
    "unseeded": "can't compare; call `torch.manual_seed(0)` before building the network",
    "other batches": "can't compare; GradScaler skipped other batches",
    "other inputs": "can't compare; the first batches differ (unseeded shuffle, or drawn on the "
    "GPU?)",
    "other weights": "can't compare; the first weights differ",
    "draws": "can't compare; its forward pass is random (dropout?)",
    "losses alike": "yes so far* ({epochs} of losses, {record.gpu})",
    "step alike": "yes so far* (first step, {record.gpu})",
    "step and losses alike": "yes so far* (first step and {epochs} of losses, {record.gpu})",
    "step apart": "no*, starting with the {record.diverges_at} ({record.gpu})",
    "losses apart": "unclear, losses differ in epoch 1 ({record.gpu}*)",
    "model: identical": "yes, bit for bit",
    "model: same within rounding": "yes, within rounding",
    "model: not shown": "unclear",
    "model: different": "no",
    "same so far": "yes so far (first step and epoch 1)[; at the end {apart:.1f} points apart, as "
    "two seeds may be]",
    "over epochs": "{words} over the {epochs:n epoch} that both trained",
    "within": "yes, within {margin:points} ({ends})",
    "seeds wanted": "unclear, accuracy on the {points}[; `seeds: {seeds}` would settle it]",
    "differ from": "no, starting with the {layer.name}",
    "differ by": "no, accuracy on the {points}",
    "points": "GPU {mean:+.1f} points ({ends})",
    # All answers, and the legend below them.
    "named": "{phrase}: {jobs:commas}.",
    "legend of busy": "The machine was busy[ during {jobs:list}][ (other programs used {share:.0%} "
    "of the CPU)], so these times may be too long.",
    "legend of busy steps": "The machine was busy while the steps of {jobs:list} were measured, so "
    "their times are left out and estimates are less certain.",
    "legend of renting": "Renting must save {terms.worth_seconds:time} after "
    "{terms.start_seconds:time} of setup[ ({keys})].",
    "legend of using": "A GPU elsewhere must save {terms.worth_seconds:time}[ after "
    "{terms.start_seconds:time} of setup][ ({keys})].",
    "keys of ask": "--start-minutes",
    "keys of renting": "compare.worth_saving, compare.rental_minutes",
    "legend of marks": "{marks:commas}.",
    "mark of ~": "~ estimated",
    "mark of *": "* from another machine",
    "mark of (": "(a-b) holds 9 runs in 10",
    "not checked": "Same model: not checked[ for {jobs:list}] where no GPU ran.",
    # What would change an estimate.
    "launches": "At batch size {it.batch_size}, launching kernels takes most of a step "
    "({it.step_seconds:time}). At {it.larger_batch_size}, a step takes "
    "{it.larger_step_seconds:time}.",
    "launches of some batch": "Launching kernels takes most of a step ({it.step_seconds:time}). "
    "With {it.larger_batch_size} times as many samples, a step takes "
    "{it.larger_step_seconds:time}.",
    "hidden loading": "The time on {gpu} has a wide range because {script.loader_workers:n worker} "
    "here hid the loading behind slower steps, so it could not be timed. It is between none and "
    "{script.step_loading_seconds:time} a step, which the first batches took.",
    "eager estimate": "The script compiles its network. Estimates are of uncompiled steps, so "
    "{gpu} may be faster.",
    # Evidence.
    "missing": "Only the CPU trained here ({why}).",
    "records": "{gpus:list}: measured on another machine.",
    "epochs": "An epoch takes {it.device_seconds:time} on {gpu.device_name} and "
    "{it.cpu_seconds:time} on {cpu.device_name}: {faster}; {verdict}.",
    "scores after": "{name:cap} is {cpu} on the CPU after {cpu_timed} and {gpu} on the GPU after "
    "{gpu_timed}, which can't be compared.",
    "scores": "{name:cap} is {gpu} on the GPU and {cpu} on the CPU.",
    "divergence": "The models first differ at the {layer.name}: {finding}.",
    "random": "The devices draw different random numbers, so a single run can't show whether the "
    "models differ by more than chance. `seeds: 3` can.",
    "metrics": "It reports {gpu:list} on the GPU and {cpu:list} on the CPU.",
    "ran": "{what:cap} on {it.device_name}[ to {scores}] in {it.total_seconds:time}[, "
    "{it.startup_seconds:time} of that start-up].",
    "trained in part": "trained {timed}",
    "no estimates": "There are no estimates for other GPUs: {why}.",
    "no steps": "The script took no optimizer step that could be seen, so it was timed as a whole: "
    "start-up, loading and compute are not known apart. Use `photofinish.steps` in its loop to "
    "show them.",
    "seeds": "Over {count} seeds, the {it.scores.main_name} is {mean} ({interval}). "
    "Two seeds differ by {two_seeds}.",
    "seeds of both": "Over {count} seeds, the {it.scores.main_name} differs by {apart} between the "
    "devices and by {two_seeds} between two seeds.",
    "cause": "On the {device}, {cause} ({it.cause}).",
    "likely cause": "On the {device}, an epoch is probably {it.likely}, but {cause}.",
    "unknown cause": "Couldn't tell what limits an epoch on the {device}: {cause}.",
    "another cause": "Also, {cause}.",
    # Speed-ups.
    "step": "a step, its data on the device",
    "epoch": "an epoch with its data",
    "end_to_end": "the whole job with start-up",
    "no interval": "no range",
    "no difference": "no clear difference",
    "gpu faster": "the GPU is faster",
    "cpu faster": "the CPU is faster",
    # Causes and suggestions.
    "start-up-bound": "start-up is {share:.0%} of the job's {whole:time}",
    "script waits": "waiting for batches is {it.share:.0%} of an epoch: {it.seconds:time} a "
    "batch, while a step takes {it.step_seconds:time}",
    "waits": "{what} takes {it.share:.0%} of an epoch: {it.seconds:time} a batch, "
    "while a step takes {it.step_seconds:time}",
    "copying": "copying to the device",
    "the loader": "the loader",
    "gathering": "gathering batches",
    "fixed": "{it.seconds:time} of a step's {it.step_seconds:time} don't depend on the batch "
    "size: launching operations and updating {run.parameter_count:,} weights",
    "arithmetic": "compute is {share:.0%} of a step[, with {threads:n thread} for {cores:n core}]",
    "try": "Try `{line}`: {prediction}.",
    "or try": "Or `{line}`: {prediction}.",
    "no suggestion": "No setting to suggest: {why}.",
    "cause unknown": "the cause is not known",
    "gains": "makes the job {gain:interval}x faster ({how})",
    # Why nothing is suggested.
    "none: start-up": "start-up happens once, so its share shrinks with more epochs",
    "none: resident": "the samples are already on the device",
    "none: copies": "`resident` was not tried, and copies are already pinned",
    "none: workers": "`resident` was not tried, and every core has a worker",
    "none: small job": "the job is small, so a faster device would not help",
    "none: used well": "none of those tried makes the job 5% faster",
    "none: container": "the container's CPU limit holds it back, so raise that",
    "none: no gain": "none of those tried makes the job at least 5% faster for certain",
    "none: untried copies": "copies from pinned memory (`pin_memory`, `non_blocking`) were not "
    "tried",
    "none: untried workers": "more workers were not tried, as starting them may cost more than "
    "they save",
    "none: untried threads": "other numbers of threads were not tried",
    # How a suggestion is known.
    "learns: the same": "tried, same results bit for bit",
    "learns: other last bits": "tried, same results but for rounding",
    "learns: something else": "tried, changes the training: compare accuracy",
    "by: captured": "tried, correct only if every step runs the same operations",
    "by: tf32": "tried, changes the training: TF32 rounds the factors of products to 10 bits",
    "by: free algorithms": "tried, the last bits change from run to run",
    "by: batch transform": "tried, changes the training: one draw for all samples of a batch",
    # Why the cause is not known.
    "why: busy": "the machine was busy",
    # A training that a time limit ended.
    "extrapolated": " (extrapolated from {timed})",
    "time limit": "The CPU trained {timed}[ before its {limit}]. The whole job's "
    "{it.whole_seconds:time} ({ends}) are extrapolated[ and an upper bound, as {early}].[ Its test "
    "metrics are those after {done}.]",
    "stops early": "it may stop early",
    "as busy as now": "as busy as it was",
    "job line": "{it.job} on {it.device}: about {about:time} for [{at_most} ]{epochs:n epoch}[ "
    "from each of {seeds} seeds] ({spread}), without MLflow's start-up",
    # The models.
    "layer of both": "{name} {layer.cpu:.4g} on the CPU, {layer.gpu:.4g} on the GPU",
    "accuracies": "{layer.cpu:.2%} on the CPU, {layer.gpu:.2%} on the GPU[; {apart}]",
    "not recorded": "not recorded: {layer.not_recorded}",
    "unequal": "different predictions for {layer.unequal:n item} ({layer.difference:.2%})",
    "difference": "a relative difference of {layer.difference:.1g}[ in {layer.at}]",
    "only one": "only one device has {layer.at}",
    "they differ": "they differ",
    # Doubts.
    "busy times": "The machine was busy ({why:list}), so the {device}'s times may be too long.",
    "busy steps": "The machine was busy while the {device}'s steps were measured ({why:list}), so "
    "their times are left out. To measure them again: {command}.",
    "interrupted": "A training was interrupted, so its time is the sum of its parts.",
    "not deterministic": "With `deterministic: false`, results don't repeat bit for bit.",
    "machines": "The devices are in different machines: {hosts:list}.",
    # Tables.
    "Speed-ups": "The CPU's time divided by the GPU's. A script's step is the mean of an epoch, "
    "without the wait for its batch. No winner is named where the range spans 1 or isn't known.",
    "Is it the same model?": "Compared from the start of training to its end.",
    "The script's metrics": "",
    "Several seeds": "How much chance changes the result.",
    "Recorded elsewhere": "Measured on other machines. A recorded GPU is used only if no GPU "
    "trained here.",
    "Figures": "",
    "evidence": "Evidence for each job",
    "cut": "The rest is on the page and in comparison.csv.",
    "extrapolated CPU": "{time}, extrapolated",
    "epochs to": "epochs to {target:g} validation accuracy",
    "time to": "time to {target:g} validation accuracy",
    "another training": "of another training",
    "day and machine": "{day} ({machine})",
    "score after": "{scores} after {timed}",
    # Pictures.
    "answers picture": "How long does each job take?",
    "described answers": "Time of each job on a logarithmic axis. {answers}",
    "described there": "{time:time} on {gpu}[ including {setup:time} of setup]",
    "picture of here": "on this CPU",
    "picture of there": "on the GPU",
    "picture of saving": "the GPU is worth it",
    "picture of setup": "setup of a machine",
    "infinitely fast": "an infinitely fast GPU[: {limit:time}]",
    "rented": "{gpu} with setup",
    "and minimum": "+ {worth.terms.worth_seconds:time} minimum",
    "described line": "{it.name}, {it.start_seconds:time} and {it.run_seconds:time} for each",
    "described lines": "Time over {unit}. {lines:list}. {note}",
    "pays picture": "When does renting pay?",
    "gpus picture": "Which GPU?",
    "name of several": "{name} ({gpus}-GPU machine)",
    "gpus note": "[Including {setup:time} of setup.][ Prices of {oldest} or later.]",
    "described gpu": "{name} {time:time} and {cost}",
    "described gpus": "Time and cost on each GPU[, including {setup:time} of setup]. {gpus:list}",
    "step picture": "Where does a step go?",
    "device step": "{device}: a step {step:time}",
    "in graphs": "Measured without CUDA graphs.",
    "described step": "Parts of a step. {devices:list}. {parts:list}",
    "losses picture": "Same model?",
    "described losses": "Training loss over {epochs:n epoch}. {curves:list}",
    "described curve": "{device} from {first:.3g} to {last:.3g}",
    "sentence": "{text:cap}.",
    # `photofinish ask`.
    "own repaid": "The GPU makes up for its longer start-up after {after:time} of training here.",
    "never repaid": "Renting {gpu} never breaks even.",
    "setup repaid": "Renting {gpu} breaks even after about {after:time} of training here[, or "
    "{never}].",
    "bars": "[{setup}  ]█ job[  {unsure}]",
    "bar of setup": "░ setup",
    "bar unsure": "▒ rough guess",
    "fits yes": "fits ({needed} of {of:g} GiB)",
    "fits perhaps": "may not fit ({needed} of {of:g} GiB)",
    "step bar": "one step on {device}, {step:time}:",
    "watched": "Watched {count}.",
    "watched none": "No step finished on the CPU.",
    "unseen": "Not counted, as not seen: {what:commas}.",
    "trained together": "Times are of all processes: {ranks} on the CPU[, {gpus:n GPU}]."
    "[ {estimates}]",
    "of all batches": "Estimates are of one GPU with the batches of all.",
    "mapped": "{script.cuda_at} asks for a GPU without checking: in this run, cuda meant the CPU.",
    "unseen validation": "validation",
    "unseen stop": "early stopping",
    "unseen end": "what follows the last step",
    "few steps seen": "Raise --seconds for a better answer.",
    "stall": "{stall.file}:{stall.line} calls `{stall.what}` in every step, so the CPU waits for "
    "the GPU. {fix}",
    "stall of a mask": "{stall.file}:{stall.line} indexes with a mask in every step, so the CPU "
    "waits for the GPU. {fix}",
    "slow line": "{share:.0%} of loading is {line}.",
    "read back": "Call it every 50 steps.",
    "keep size": "Its result's size is read back; `torch.where` keeps the size.",
    "make there": "Create the tensor on the GPU with `device=`.",
    "launching": "Launching kernels takes at least {share:.0%} of each step on the GPU: "
    "try a larger batch, `torch.compile` or CUDA graphs.",
    "slow GPU": "By its data sheet, a step would take about {it.expected_seconds:time} on this "
    "GPU, and it takes {it.step_seconds:time}: {why}.",
    "slow GPU: others": "other programs are on it",
    "slow GPU: clock": "it reduced its clock",
    "slow GPU: host": "it mostly waits for the CPU",
    "slow GPU: loading": "it may wait for data, which was not timed separately",
    "slow GPU: not known": "it may wait for copies, which `torch.profiler` would show",
    "moves nothing": "Your script moves nothing to a GPU, so no GPU helps until you add "
    "`.to(device)` for its model and its batches.",
    "no estimates asked": "There are no GPU estimates: {why}.",
    "untried workers of a script": "`num_workers` may hide this wait (not tried). Add "
    "`persistent_workers=True`, or the workers restart every epoch.",
    # The overview.
    "time there": "{time} on {gpu}",
    "what next": "{action:cap}",
    "same model": "Same model: {model}.",
    "no GPU here": "No GPU in this machine.",
}
