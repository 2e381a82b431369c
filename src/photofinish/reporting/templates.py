"""Templates of all sentences of an answer, for every place where it is shown.

A field is a value or an attribute of one, and its format may be a unit: `{gpu.seconds:time}`.
What is in square brackets is left out if a value in it is not known, 0 or empty.
"""

from __future__ import annotations

NOTHING = "n/a"
THE_SAME = "the same"

TEMPLATES = {
    # The first line of an answer.
    "no by a bound": "No. {here} here, and no GPU makes it more than {worth.limit:limit} faster"
    "[: {cause}].",
    "too short to rent": "{word}. {here} here. A GPU gains {most:time} at most[ after "
    "{worth.terms.start_seconds:time} of start], and {worth.terms.worth_seconds:time} are asked.",
    "shorter than a start": "{word}. {here} here, and a machine with a GPU takes "
    "{worth.terms.start_seconds:time} to start.",
    "not worth it": "{word}. {here} here; on {gpu} {there}[ after "
    "{worth.terms.start_seconds:time} of start][: gains {gained}, "
    "{worth.terms.worth_seconds:time} asked].",
    "worth it": "Probably yes, {verb} {gpu}: {there}[ with {start}][, {cost}], not {here}."
    "[ {cause:cap}.]",
    "close call": "Close call. {here} here, {there} on {gpu}[ with {start}][: gains {gained}]"
    "[, {worth.terms.worth_seconds:time} asked].[ {cost:cap}.]",
    "can't tell": "Can't tell yet: {there} on {gpu}[ with {start}], {here} here.[ {unknown:cap}.]",
    "no estimate": "Can't tell: {here} here, and no estimate for a GPU. {unknown:cap}.",
    "GPU yes": "Yes. {there:cap} on {gpu}, {here} on the CPU: {speedup}, measured.[ {cause:cap}.]",
    "only a GPU": "Yes, at least {least}: a step takes {there:time} on {gpu}, and none ended "
    "within {here:time} on the CPU.",
    "GPU no": "No. {there:cap} on {gpu}, {here} on the CPU: {speedup}.[ {cause:cap}.]",
    "GPU close call": "Close call. {here} on the CPU and {there} on {gpu}: {speedup}.",
    "GPU can't tell": "Can't tell yet: {there} on {gpu}, {here} on the CPU: {speedup}."
    "[ {unknown:cap}.]",
    "with busy": "{answer} Machine[ {share:.0%}] busy.",
    "busy here": "{busy:time} as busy as now[ ({idle})]",
    "when idle": "{idle:time} when idle",
    "as busy as now": "as busy as it was",
    "all of a sweep": "{here} for the sweep's {jobs:n job}",
    "all seeds": "{here} for all its seeds",
    "timed of": "~{time} ([{ends}, ]after {timed}[; {early}])",
    "stops early": "at most, as it may stop early",
    "not known there": "an unknown time",
    "faster by": "{speedup} ({ends})",
    "at least": "at least {least}",
    "unsure": "very unsure",
    "gain unknown": "what it gains is not known[, and {worth.terms.worth_seconds:time} are asked]",
    "perhaps nothing": "at most {most:time}, perhaps nothing",
    "gains between": "it gains {ends}[, and {worth.terms.worth_seconds:time} are asked]",
    "its start": "its start",
    "cost of machine": "{cost} ({gpus}-GPU machine)",
    "wide": "the interval's ends are more than 12x apart",
    "slow kernels": "the CPU's {precision} kernels are slow ({slow.share:.1%} of an fp32 product's "
    "rate)",
    "unknown loading": "its loading is not known: {why}",
    "uncounted": "no formula counts {names}",
    "nothing recorded": "No accelerator is named, and none is recorded",
    "none fits": "a step needs at least {needed} GiB, and {gpu} has {memory:g}",
    "none estimated": "there are no estimates for {gpus:list}",
    "outdated": "The script has changed since this result: `photofinish run` runs it again.",
    # The share of a job, an epoch or a step that takes most of its time.
    "share of start-up": "{share:.0%} is start-up",
    "share of loader": "the loader is {share:.0%} of an epoch",
    "share of waiting": "waiting for batches is {share:.0%} of an epoch",
    "share of copying": "copying is {share:.0%} of an epoch",
    "share of launching": "{share:.0%} of a step is launching and updating",
    "share of arithmetic": "{share:.0%} is arithmetic",
    "likely share": "likely {cause}",
    # The second line: what to do.
    "do": "Do: {action}",
    "use the GPU": "train on {gpu}.",
    "use the CPU": "train on the CPU.",
    "use either": "train on the one that is free.",
    "rent": "{rent}.",
    "rent by command": "`photofinish rent {action.accelerator}[ -- {command}]`",
    "change a setting": "`{setting}`. About {gain} faster on this {device} ({ends}), {how}.",
    "fewer epochs": "`epochs: {fewer.epochs}`. {score} there, which makes the job {gain} shorter.",
    "target reached": "Validation accuracy reached {fewer.accuracy:.1%} (`target_accuracy`)",
    "best reached": "Validation accuracy reached its best, {fewer.accuracy:.1%},",
    "measure again": "`{command}` when the machine is quiet (at most {took:time}).",
    "measure longer": "`time_limit: {limit} s` in params.yaml ({more:time} more).",
    "sample longer": "the same with `--seconds {limit}` ({more:time} more).",
    "train longer": "let the command train longer.",
    "try a GPU": "train it once on {gpu}.",
    "try a rented GPU": "{rent}[ ({price})].",
    "compare in fp32": "`precision: fp32`, in which the CPU is a fair comparison.",
    "stay here": "stay on this CPU.",
    "stay here for few": "stay. Renting pays {runs}.",
    "rent for some": "one run: stay. {action.runs.surely} or more: {rent}.",
    "runs": "surely from {runs.surely:n run}[, perhaps from {perhaps}]",
    "GPU of yours": "On {gpu} of your own: {speedup} ({ends}).",
    # The second line: whether the model is the same.
    "model": "Model: {model}.",
    "not checked": "not checked ({why})",
    "no GPU trained": "no GPU trained here",
    "a script's model": "the first step is not recorded on both devices",
    "on a rented GPU": "{text}* on a {gpu}",
    "identical": "identical (the first step)",
    "same step": "same within rounding (the first step)",
    "other step": "different in the first step ({found.layer})",
    "unseeded": "not comparable (call `torch.manual_seed(0)` before the network is made)",
    "other batches": "not comparable (other batches in the first step, as GradScaler skips some)",
    "other inputs": "not comparable (other inputs: an unseeded shuffle, or drawn on the GPU)",
    "other weights": "not comparable (its first weights differ)",
    "draws": "not comparable (its forward pass draws random numbers, as dropout does)",
    "losses alike": "losses alike* ({record.gpu}, {epochs})",
    "step alike": "first step alike* ({record.gpu})",
    "step and losses alike": "first step and losses alike* ({record.gpu}, {epochs})",
    "step apart": "different* from the {record.diverges_at} on ({record.gpu})",
    "losses apart": "not shown ({record.gpu}*: losses differ in the first epoch)",
    "first epoch": "the first epoch",
    "first epochs": "the first {epochs} epochs",
    # The legend below all answers.
    "legend of terms": "{word}:[ {terms.start_seconds:time} to start, then] it must gain "
    "{terms.worth_seconds:time} (compare.rental_minutes, worth_saving).",
    "legend of marks": "{marks:commas}.",
    "mark of ~": "~ estimated or extrapolated",
    "mark of *": "* recorded elsewhere",
    "mark of (": "(a-b) true in about 9 of 10",
    # What would change an estimate.
    "launches": "At batch size {it.batch_size}, launching kernels takes most of a step "
    "({it.step_seconds:time}). At {it.larger_batch_size}, a step takes "
    "{it.larger_step_seconds:time}.",
    "launches of some batch": "Launching kernels takes most of a step ({it.step_seconds:time}). "
    "With {it.larger_batch_size} times as many samples, a step takes "
    "{it.larger_step_seconds:time}.",
    "captured": 'With `cuda_graphs: "on"`, about {seconds:time} on {gpu}.',
    "loader": "{gpu:cap} takes {need.gpu_samples_a_second:ratio} samples/s of this network, and "
    "one core here loads {need.core_samples_a_second:ratio}. So it needs {cores:n core}. The "
    "cheapest machine has {need.cores} ({need.vcpus} vCPUs), so the GPU would wait "
    "{need.waiting_share:.0%} of the time.",
    "hidden loading": "On {gpu} it takes at least the time of its steps: loading by "
    "{run.loader_workers:n worker} is hidden by the steps here, so it was not timed. By the first "
    "batches, it takes at most {run.step_loading_seconds:time} a step, which the answer counts.",
    "no loading": "Its loading is not known: {why}.",
    # All experiments.
    "count": "{count} {answer}",
    "busy": "The machine was busy ({why}), so {whose:list} times are unreliable.",
    "whose": "the {device}'s",
    # Evidence.
    "missing": "Only the CPU trained here ({why}).",
    "epochs": "An epoch takes {it.device_seconds:time} on {gpu.device_name} and "
    "{it.cpu_seconds:time} on {cpu.device_name}: {faster}; {verdict}.",
    "repaid": "When the GPU's start-up is repaid: {when}.",
    "scores after": "{name:cap} is {cpu} on the CPU after {cpu_timed} and {gpu} on the GPU after "
    "{gpu_timed}: not comparable.",
    "scores": "{name:cap} is {gpu} on the GPU and {cpu} on the CPU.",
    "divergence": "The models first differ at the {layer.name}: {finding}.",
    "random": "Each device draws its own random numbers, so few trainings of each cannot show "
    "whether the models differ by more than chance; `seeds: 3` can.",
    "metrics": "On the GPU it reports {gpu:list}; on the CPU {cpu:list}.",
    "ran": "{it.device_name} {what} in {it.total_seconds:time}[, {it.startup_seconds:time} of it "
    "start-up].",
    "trained": "trained {what} to {scores}",
    "no estimates": "There are no estimates for other GPUs: {why}.",
    "no steps": "No step of an optimizer was seen in the script, so it is timed as a whole: its "
    "start-up, its loading and what its steps compute are not known. `photofinish.steps` in its "
    "loop shows them.",
    "seeds": "Over {count} seeds the {it.scores.main_name} is {mean} ({interval}). "
    "Two seeds differ by {two_seeds}.",
    "seeds of both": "Over {count} seeds the {it.scores.main_name} differs by {apart} between the "
    "devices and by {two_seeds} between two seeds.",
    "cause": "On the {device}, {cause} ({found.cause}).",
    "likely cause": "On the {device}, an epoch is likely {found.likely}, but {cause}.",
    "unknown cause": "What an epoch on the {device} waits for is not known: {cause}.",
    "another cause": "And {cause}.",
    # Speed-ups.
    "step": "a step, its data on the device",
    "epoch": "an epoch with its data",
    "end_to_end": "the whole job with start-up",
    "no interval": "no interval",
    "no difference": "no clear difference",
    "gpu faster": "the GPU is faster",
    "cpu faster": "the CPU is faster",
    "perhaps never": "can't tell, because its epochs may be no shorter",
    "never": "never, because its epochs are no shorter",
    "at once": "at once",
    "after": "after {epochs:n epoch}",
    "no exact end": "{when} (no interval)",
    "ends": "{what} ({low} to {high})",
    # Causes and suggestions.
    "start-up-bound": "start-up is {share:.0%} of the job's {whole:time}",
    "script waits": "{run.waiting_share:.0%} of an epoch waits for batches: "
    "{run.batch_seconds:time} per batch, and a step takes {step:time}",
    "waits": "{what} takes {share:.0%} of an epoch: {batch:time} per batch, and a step takes "
    "{step:time}",
    "copying": "copying to the device",
    "the loader": "the loader",
    "gathering": "gathering batches",
    "fixed": "{costs.fixed_seconds:time} of a step's {costs.step_alone_seconds:time} do not depend "
    "on its samples: launching operations and updating {run.parameter_count:,} weights",
    "arithmetic": "arithmetic is {share:.0%} of a step[, with {threads:n thread} for "
    "{cores:n core}]",
    "try": "Try `{line}`: {prediction}.",
    "or try": "Or `{line}`: {prediction}.",
    "tf32 by default": "TF32, PyTorch's default for convolutions, makes an epoch about {gain} "
    "faster (`precision: tf32`, tried).",
    "no suggestion": "No setting is suggested: {why}.",
    "cause unknown": "the cause is not known",
    "gains": "the job gets {gain:interval}x faster ({how})",
    # Why nothing is suggested.
    "none: start-up": "start-up happens once, so its share shrinks with more epochs",
    "none: resident": "the samples are on the device already",
    "none: copies": "`resident` was not tried, and copies are pinned already",
    "none: workers": "`resident` was not tried, and each core has a worker",
    "none: small job": "the job is small, and a faster device would not help",
    "none: used well": "none that was tried makes the job 5% faster",
    "none: container": "the container's limit holds the CPU back, so raise it",
    "none: no gain": "none that was tried surely makes the job faster, by 5% or more",
    "none: untried copies": "copies from pinned memory (`pin_memory`, `non_blocking`) were not "
    "tried",
    "none: untried workers": "more workers were not tried, and starting them may cost more than "
    "they gain",
    "none: untried threads": "another number of threads was not tried",
    # How a suggestion is known.
    "learns: the same": "same bits, tried",
    "learns: other last bits": "tried, changes the last bits",
    "learns: something else": "tried, changes what is learned, so compare the accuracy",
    "by: captured": "tried, right only if each step runs the same operations",
    "by: tf32": "tried, changes what is learned: TF32 rounds the factors of products to 10 bits",
    "by: free algorithms": "tried, changes the last bits from run to run",
    "by: batch transform": "tried, changes what is learned, as a batch draws once for all samples",
    # Why the cause is not known.
    "why: busy": "the machine was busy",
    "why: few steps": "it trained fewer than {least} steps",
    "why: training": "an epoch takes {apart:time} when measured, and took {whole:time} in the "
    "training",
    "why: epoch": "the parts of its steps add up to {apart:time}, and an epoch took {whole:time}",
    "why: step": "the parts of a step add up to {apart:time}, and on one batch it takes "
    "{whole:time}",
    # A training that a time limit ended.
    "timed": "{done:,} of {whole}",
    "extrapolated": " (extrapolated from {timed})",
    "from": "from {timed}",
    "time limit": "The CPU trained {timed}[, by its {limit}]. The whole job's time of "
    "{it.whole_seconds:time} is extrapolated ({ends}[; {early}]).[ Its test metrics are those "
    "after {done}.]",
    "job line": "{it.job} on {it.device}: about {about:time} for [{at_most} ]{epochs:n epoch}"
    "[ from each of {seeds} seeds] ({spread}), without the start of MLflow",
    # The models.
    "not shown": "not shown to be the same",
    "same so far": "yes so far (first step and epoch 1)[; at the end {apart:.1f} points apart, as "
    "two seeds may be]",
    "over epochs": "{words} over the {epochs:n epoch} that both trained",
    "within": "{words} (within {margin:points}: {ends})",
    "seeds wanted": "{words}: {points}, and `seeds: {seeds}` would decide",
    "differ from": "{words} from the {layer.name} on",
    "differ by": "{words}: {points}",
    "points": "GPU {mean:+.1f} points ({ends})",
    "layer of both": "{name} {layer.cpu:.4g} on the CPU, {layer.gpu:.4g} on the GPU",
    "accuracies": "{layer.cpu:.2%} on the CPU, {layer.gpu:.2%} on the GPU[; {apart}]",
    "not recorded": "not recorded: {layer.not_recorded}",
    "unequal": "other predictions for {layer.unequal:n item} ({layer.difference:.2%})",
    "difference": "a relative difference of {layer.difference:.1g}[ in {layer.at}]",
    "only one": "only one device has {layer.at}",
    "they differ": "they differ",
    # Doubts.
    "busy steps": "The machine was busy while the {device}'s steps were measured ({why:list}), so "
    "their times are unreliable. To measure them again: {command}.",
    "interrupted": "A training was interrupted, so its time is the sum of its parts.",
    "not deterministic": "With `deterministic: false` the results don't repeat bit for bit.",
    "machines": "The devices are in different machines: {hosts:list}.",
    # Tables.
    "Speed-ups": "The CPU's time divided by the GPU's. A script's step is the mean of an epoch, "
    "without the wait for its batch. No winner is named where the range spans 1 or isn't known.",
    "Loading with more workers": "Timed without steps. A worker's CPU time is for four batches.",
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
    "one by one": "one by one: {why}",
    "in graphs of": "in graphs of {at_once}",
    # Pictures.
    "answers picture": "How long does each job take?",
    "described answers": "Time of each job on a logarithmic axis. {answers}",
    "described there": "{time:time} on {gpu}[ including {setup:time} of setup]",
    "picture of here": "on this CPU",
    "picture of there": "on the GPU",
    "picture of saving": "the GPU is worth it",
    "picture of setup": "setup of a machine",
    "infinitely fast": "an infinitely fast GPU[: {limit:time}]",
    "with setup": "{gpu} with setup",
    "and minimum": "+ {worth.terms.worth_seconds:time} minimum",
    "described line": "{it.name}, {it.start_seconds:time} and {it.each_seconds:time} for each",
    "described lines": "Time over {unit}. {lines:list}. {note}",
    "pays picture": "When does renting pay?",
    "repaid picture": "When does the GPU make up for its start-up?",
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
    "ask again": "the same command when the machine is quiet ({took:time}).",
    "own repaid": "The GPU here repays its start after {after:time} of training here.",
    "never repaid": "{gpu:cap} never repays its start.",
    "start repaid": "{gpu:cap} repays the {worth.terms.start_seconds:time} of its start from about "
    "{after:time} of training here on[, or {never}].",
    "bars": "[{start}  ]█ job[  {unsure}]",
    "bar of start": "░ start of the machine",
    "bar unsure": "▒ job, very unsure",
    "fits yes": "fits ({needed} of {of:g} GiB)",
    "fits perhaps": "may not fit ({needed} of {of:g} GiB at least)",
    "step bar": "{device}: a step {step:time}:",
    "seen": "Seen: {count}.",
    "seen none": "Seen: no step on the CPU.",
    "unseen": "Not seen, so not counted: {what:commas}.",
    "unseen validation": "validation",
    "unseen stop": "early stopping",
    "unseen end": "what follows the last step",
    "few steps seen": "--seconds allows more.",
    "stall": "{stall.file}:{stall.line} has `{stall.what}` in each step: the host waits for a GPU "
    "there. {mend}",
    "read back": "Read it every 50 steps.",
    "keep size": "Its size is read back. `torch.where` needs none.",
    "make there": "Make it on the GPU, by `device=`.",
    "moves nothing": "Your script moves nothing to a GPU, so none helps before you add "
    "`.to(device)` for its model and batches.",
    "no estimates asked": "There are no estimates: {why}.",
    "untried workers of a script": "Workers (`num_workers`) may hide these waits, but were not "
    "tried: without `persistent_workers=True` they start again in each epoch.",
    # The overview.
    "time there": "{time} on {gpu}",
    "next": "{action:cap}",
    "no GPU here": "No GPU in this machine.",
    "records": "{gpus:list}: measured elsewhere.",
}
