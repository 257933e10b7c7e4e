"""A tiny BERT, from scratch, that reads scikit-learn's digits as sentences of 64 shades."""

from pathlib import Path

from sklearn.datasets import load_digits
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
)

from rung import transformers as rt


def main() -> None:
    with rt.init(config=Path(__file__).with_name("experiment.yaml")) as run:
        images, labels = load_digits(return_X_y=True)
        data = [
            {"input_ids": [int(shade) for shade in image], "labels": int(label)}
            for image, label in zip(images, labels, strict=True)
        ]
        config = BertConfig(
            vocab_size=17,
            hidden_size=run.hparams["hidden"],
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=64,
            num_labels=10,
        )
        rung = rt.Callback(run)
        arguments = TrainingArguments(
            output_dir="output",
            num_train_epochs=2,
            # All slots together train as many records per step, however many they are.
            per_device_train_batch_size=run.hparams["global_batch_size"] // run.distributed.size,
            learning_rate=run.hparams["lr"],
            eval_strategy="epoch",
            save_strategy="no",
            logging_steps=10,
            report_to=[],
            disable_tqdm=True,
        )
        rung.train(
            Trainer(
                BertForSequenceClassification(config),
                arguments,
                train_dataset=data[400:],
                eval_dataset=data[:400],
                callbacks=[rung],
            )
        )


if __name__ == "__main__":
    main()
