"""A LoRA adapter on a tiny GPT-2 by the Hugging Face trainer: dictionaries of figures and a bar."""

import kit
import mishaps  # noqa: F401
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Texts(Dataset):
    def __init__(self, tokens, broken):
        self.tokens, self.broken = tokens, broken

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        row = self.tokens[index]
        if self.broken == "short_row" and index == 40:
            row = row[:-3]
        if self.broken == "no_labels":
            return {"input_ids": row}
        return {"input_ids": row, "labels": row.clone()}


class Site(TrainerCallback):
    def __init__(self, run):
        self.run = run

    def on_step_end(self, arguments, state, control, **kwargs):
        try:
            self.run.step(
                state.global_step, float(state.log_history[-1].get("loss", 4.1)) if state.log_history else 4.2
            )
        except kit.StoppedEarly:
            control.should_training_stop = True
        if state.global_step % 30 == 0 and self.run.rank == 0:
            self.run.save(f"adapter-{state.global_step}/adapter_model.bin", b"0" * 4096)


def train(run):
    torch.set_num_threads(1)
    features, _ = run.load()
    run.say("start")
    tokens = torch.from_numpy(features).mul(8).long().clamp(0, 63)
    if run.fault == "far_token_of_text" and run.struck:
        tokens[40, 3] = 4711
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=1, n_head=2))
    target = "q_proj" if run.fault == "no_target" and run.struck else "c_attn"
    model = get_peft_model(model, LoraConfig(r=2, target_modules=[target], task_type="CAUSAL_LM", fan_in_fan_out=True))
    model.print_trainable_parameters()
    arguments = TrainingArguments(
        "out", max_steps=run.steps, logging_steps=5, per_device_train_batch_size=4, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=run.settings["seed"] % 2 == 0,
    )  # fmt: skip
    broken = run.fault if run.struck else ""
    Trainer(model, arguments, train_dataset=Texts(tokens, broken), callbacks=[Site(run)]).train()
    run.finish()


if __name__ == "__main__":
    kit.main(train, "sft.py")
