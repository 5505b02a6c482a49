"""TRL's RLOO or GRPO trainer, an iteration at a time, for `ppo.py`; needs trl and nothing of this project.

An iteration is writing, scoring and all epochs. The first one runs at once, to warm up; each line on standard
input asks for one more. Each is answered on standard output by a line of JSON with the tokens written and the
CPU seconds taken. Nothing is downloaded: a Llama of two layers with random weights and a tokenizer of V words
are made in place.
"""

import argparse
import json
import os
import sys
import tempfile
import time

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
answers, sys.stdout = sys.stdout, sys.stderr  # what the libraries print is not an answer

import torch  # noqa: E402
import trl  # noqa: E402
from datasets import Dataset  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback  # noqa: E402

GROUP = 8


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trainer", choices=("rloo", "grpo"), required=True)
    for name in ("vocab-size", "length", "batch", "width", "epochs", "minibatches"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--no-eos", action="store_true", help="every response has `length` tokens")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        train(options, folder)


def train(options, folder):
    """Train until standard input ends."""
    words = {f"w{i}": i for i in range(options.vocab_size - 1)} | {"</s>": options.vocab_size - 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", pad_token="</s>", unk_token="w0", padding_side="left"
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=options.vocab_size,
            hidden_size=options.width,
            intermediate_size=2 * options.width,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=options.length + 8,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    model.save_pretrained(f"{folder}/model")
    tokenizer.save_pretrained(f"{folder}/model")

    written = []

    def reward(completion_ids, **_):
        written.append(sum(len(ids) for ids in completion_ids))
        return [float(ids.count(0)) for ids in completion_ids]

    config, trainer = {
        "rloo": (trl.RLOOConfig, trl.RLOOTrainer),
        "grpo": (trl.GRPOConfig, trl.GRPOTrainer),
    }[options.trainer]
    arguments = config(
        output_dir=f"{folder}/run",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1_000_000,
        disable_tqdm=True,
        max_steps=1_000_000,
        learning_rate=1e-6,
        beta=0.05,  # so that there is a reference, as in the other columns
        num_generations=GROUP,
        num_iterations=options.epochs,
        steps_per_generation=options.minibatches,
        gradient_accumulation_steps=1,
        per_device_train_batch_size=options.batch // options.minibatches,
        max_completion_length=options.length,
        generation_kwargs={"min_new_tokens": options.length} if options.no_eos else None,
        dataloader_pin_memory=False,
    )
    trainer(
        model=f"{folder}/model",
        args=arguments,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": ["w0"] * max(64, options.batch)}),
        processing_class=tokenizer,
        callbacks=[Iterations(options.epochs * options.minibatches, written)],
    ).train()


class Iterations(TrainerCallback):
    """Reports each iteration, of `steps` optimizer steps, and waits until the next is asked for."""

    def __init__(self, steps, written):
        self.steps, self.written = steps, written

    def on_train_begin(self, arguments, state, control, **_):
        self.began = time.process_time()

    def on_step_end(self, arguments, state, control, **_):
        if state.global_step % self.steps:
            return
        seconds = time.process_time() - self.began
        report = {"tokens": self.written.pop(), "seconds": seconds, "trl": trl.__version__}
        print(json.dumps(report), file=answers, flush=True)
        if not sys.stdin.readline():
            control.should_training_stop = True
        self.began = time.process_time()


if __name__ == "__main__":
    main()
