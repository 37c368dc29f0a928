"""Tests of the scripts here: python3 -m unittest pocket/test_pocket.py (needs regex, jinja2, tiktoken; some need torch, transformers or Pillow)."""
import gzip
import json
import os
import pathlib
import random
import re
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from data import mix  # noqa: E402
from data.common import BEYOND, held_out  # noqa: E402
from data.render import Renderer, sorted_keys, tools_typescript  # noqa: E402
from tokenizer.encoding import PATTERN, Tokenizer  # noqa: E402


def template():
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = lambda value, separators=None: json.dumps(value, ensure_ascii=False, separators=separators)
    return env.from_string((HERE / "model/chat_template.jinja").read_text())


class PocketTest(unittest.TestCase):
    def setUp(self):
        self.tokenizer = Tokenizer()

    def test_tokens_equal_tiktoken(self):
        import tiktoken
        encoding = tiktoken.Encoding("pocket", pat_str=PATTERN, mergeable_ranks={b: r for r, b in self.tokenizer.bytes_of.items()}, special_tokens=self.tokenizer.special)
        rng = random.Random(1)
        for _ in range(3000):
            text = "".join(rng.choice([" ", "\n", "a", "Zo", "12", "é", "中文", "😀", "'s", "//", "_x", "\t", "<|im_end|>"]) for _ in range(rng.randint(1, 40)))
            self.assertEqual(self.tokenizer.encode(text), encoding.encode_ordinary(text))
            self.assertEqual(self.tokenizer.decode(self.tokenizer.encode(text)), text)

    def test_every_token_is_reached_by_merging_and_no_two_digits_join(self):
        for rank, raw in self.tokenizer.bytes_of.items():
            self.assertEqual(self.tokenizer.pairs.merge(raw), [rank])
            self.assertIsNone(re.search(rb"[0-9]{2}", raw))

    def test_training_ids_are_what_the_template_prints(self):
        special = re.compile("(" + "|".join(map(re.escape, self.tokenizer.special)) + ")")
        renderer, page = Renderer(self.tokenizer), template()
        for case, _ in zip(mix.stream(random.Random(5)), range(300)):
            declared = tools_typescript(sorted_keys(case.tools)) if case.tools else None
            text = page.render(messages=case.messages[:-1], tools=case.tools, tools_ts_str=declared, add_generation_prompt=True, thinking=case.thinking)
            ids = []
            for part in special.split(text):
                ids += [self.tokenizer.special[part]] if part in self.tokenizer.special else self.tokenizer.encode(part)
            full, flags = renderer.training(case)
            self.assertEqual(full[:len(ids)], ids)
            self.assertTrue(all(flags[len(ids):]))
            self.assertEqual(len(full), len(flags))

    def test_template_prints_what_the_vendors_does(self):
        folder = pathlib.Path(os.environ.get("BALTORO_TEST_DATA") or HERE.parent.parent / "shared/data") / "kimi-k2.5-tokenizer"
        if not folder.is_dir():
            self.skipTest("no golden prompts: BALTORO_TEST_DATA names no folder that holds kimi-k2.5-tokenizer")
        page = template()
        for line in (folder / "golden_prompts.jsonl").read_text().splitlines():
            golden = json.loads(line)
            request = golden["request"]
            extra = {"thinking": request["thinking"]} if "thinking" in request else {}
            self.assertEqual(page.render(messages=request["messages"], tools=sorted_keys(request.get("tools")), tools_ts_str=golden["tools_typescript"],
                                         add_generation_prompt=request.get("add_generation_prompt", True), **extra), golden["prompt"])

    def test_training_never_draws_what_is_held_out(self):
        rng = random.Random(9)
        for family, (make, _, _) in mix.FAMILIES.items():
            for hard in (0, 1, BEYOND):
                case = mix.draw_held_out(rng, family, hard)
                self.assertTrue(held_out(case))
                self.assertFalse(held_out(mix.draw(rng, family, hard)))

    def test_eval_questions_are_held_out_and_reproducible(self):
        from make_eval import cases
        stored = gzip.decompress((HERE / "eval/cases.jsonl.gz").read_bytes()).decode().splitlines()
        for line, fresh in zip(stored[:300], cases()):
            self.assertEqual(json.loads(line), fresh)

    def test_written_steps_reach_the_right_result(self):
        from data import arithmetic
        rng = random.Random(3)
        for _ in range(500):
            op, a, b = arithmetic.operands(rng, rng.randrange(2))
            steps, result = arithmetic.solve(op, a, b)
            truth = {"+": a + b, "-": a - b, "*": a * b}.get(op)
            self.assertEqual(result, str(truth) if truth is not None else f"{a // b}" + (f" remainder {a % b}" if a % b else ""))
            self.assertIn(str(abs(truth)) if truth is not None else str(a // b), steps)

    def test_the_model_agrees_with_transformers(self):
        try:
            import torch
            import transformers  # noqa: F401
        except ImportError:
            self.skipTest("torch or transformers is not installed")
        sys.path.insert(0, str(HERE.parent / "tools"))
        from modeling import load
        from record_pocket_golden import reference_model
        ids = torch.tensor(Renderer(self.tokenizer).prompt([{"role": "user", "content": "What is 4821 + 377?"}], None, True))
        with torch.no_grad():
            ours, theirs = load(HERE / "model").logits(ids), reference_model(torch.float32)(ids[None]).logits[0]
        self.assertLess(float((ours - theirs).abs().max()), 1e-3)

    def test_prompts_with_pictures_are_what_the_template_prints(self):
        try:
            from data import see_mix
        except ImportError:
            self.skipTest("Pillow is not installed")
        special = re.compile("(" + "|".join(map(re.escape, self.tokenizer.special)) + ")")
        renderer, page = Renderer(self.tokenizer), template()
        for case, _ in zip(see_mix.stream(random.Random(5)), range(60)):
            turns = case.messages[:-1]
            tokens = [part["canvas"].tokens() for m in turns if isinstance(m["content"], list) for part in m["content"] if part["type"] == "image"]
            text = page.render(messages=turns, add_generation_prompt=True, thinking=case.thinking)
            self.assertEqual(text.count("<|media_pad|>"), len(tokens))
            ids = []
            for part in special.split(text):
                if part == "<|media_pad|>":
                    ids += [self.tokenizer.special[part]] * tokens.pop(0)
                else:
                    ids += [self.tokenizer.special[part]] if part in self.tokenizer.special else self.tokenizer.encode(part)
            told = [{**m, "content": [{"type": "image", "tokens": part["canvas"].tokens()} if part["type"] == "image" else part for part in m["content"]]}
                    if isinstance(m["content"], list) else m for m in turns]
            self.assertEqual(renderer.prompt(told, None, case.thinking), ids)

    def test_pictures_asked_about_are_held_out(self):
        try:
            from data import see_mix
        except ImportError:
            self.skipTest("Pillow is not installed")
        rng = random.Random(3)
        for task in see_mix.TASKS:
            for hard in (0, 1):
                self.assertTrue(held_out(see_mix.question(rng, task, hard)))
                self.assertFalse(held_out(see_mix.talk(rng, task, hard)))

    def test_the_encoder_agrees_with_transformers(self):
        try:
            import numpy
            import torch
            import transformers  # noqa: F401
            import vision
        except ImportError:
            self.skipTest("torch or transformers is not installed")
        sys.path.insert(0, str(HERE.parent / "tests/golden/vision"))
        import make_vision
        shape = dict(make_vision.TINY_A)
        sight = vision.Sight({**vision.CONFIG, **shape}, most=64)
        sight.load_state_dict({name: make_vision.weight(name, dims).float() for name, dims in make_vision.shapes(shape).items()})
        rng, pictures, pixels, grids = numpy.random.default_rng(1), [], [], []
        for height, width in ((56, 56), (112, 112), (28, 28), (60, 200), (224, 84), (300, 100)):
            picture = rng.integers(0, 256, (height, width, 3), dtype=numpy.uint8)
            rows, columns = -(-height // 28) * 2, -(-width // 28) * 2
            full = numpy.zeros((rows * 14, columns * 14, 3), numpy.uint8)
            full[:height, :width] = picture
            pictures.append(picture)
            pixels.append(full.reshape(rows, 14, columns, 14, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, 14, 14))
            grids.append([1, rows, columns])
        with torch.no_grad():
            ours = sight(*vision.pack(pictures))
            theirs = make_vision.encode(make_vision.load(shape, torch.float32), torch.from_numpy(numpy.concatenate(pixels)).float() / 127.5 - 1, grids)
        self.assertEqual(ours.shape, theirs.shape)
        self.assertLess(float((ours - theirs).norm() / theirs.norm()), 1e-5)

    def test_the_draft_agrees_with_the_recorded_ones(self):
        """The second round of tests/golden/eagle3: all slots with the target's vectors, then the chain from the last."""
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        folder = HERE.parent / "tests/golden/eagle3"
        sys.path.insert(0, str(folder))
        import make_eagle3 as golden
        from draft import Draft
        compared = 0
        for case in json.loads(gzip.decompress((folder / "drafts.json.gz").read_bytes()))["cases"]:
            config, name = case["config"], case["name"]
            if config["rope_scaling"] is None or config["num_key_value_heads"] != config["num_attention_heads"]:
                continue
            table = (config["vocab_size"], config["hidden_size"])
            embedding = golden.weight("embed_tokens.weight", table) if case["embed_tokens"] else golden.weight("model.embed_tokens.weight", table, golden.TARGET_SEED)
            draft = Draft({"draft_vocab_size": config["vocab_size"], **config}, torch.from_numpy(embedding))
            layer = "layers.0." if "kv_lora_rank" in config else "midlayer."
            tensors = {key.replace("midlayer.", layer): torch.from_numpy(golden.weight(key, shape)) for key, shape in golden.shapes(config).items()}
            ids = torch.tensor(case.get("draft_ids", range(config["vocab_size"])))
            draft.load_tensors({**tensors, "d2t": ids - torch.arange(len(ids))})
            first, second = case["rounds"]
            tokens = torch.tensor(first["tokens"] + second["tokens"])
            batch = {"taps": torch.from_numpy(golden.vectors(name, config, len(tokens))), "next": tokens, "positions": torch.arange(len(tokens)),
                     "counted": torch.tensor([len(tokens) - 1]), "spans": [(1, len(tokens), torch.tensor([len(tokens) - 1]))]}
            with torch.no_grad():
                steps = draft.unroll(batch, len(second["drafted"]), "own")
            self.assertEqual([int(draft.ids[logits.argmax()]) for logits in steps], second["drafted"], name)
            for logits, wanted in zip(steps, second["steps"][2:]):
                best = logits[0].topk(5)
                self.assertEqual([int(draft.ids[i]) for i in best.indices], [token for token, _ in wanted["top"]], name)
                for got, (_, value) in zip(best.values.tolist(), wanted["top"]):
                    self.assertAlmostEqual(got, value, delta=1e-4)
                    compared += 1
        self.assertGreaterEqual(compared, 11 * 5 * 5)

    def test_the_shipped_drafts_propose_what_is_recorded(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        folder = HERE.parent / "tests/golden"
        sys.path.insert(0, str(folder / "eagle3"))
        from draft import load_draft
        from make_pocket_drafts import answer_of, chains
        from modeling import load
        target = load(HERE / "model")
        prompts = json.loads(gzip.decompress((folder / "pocket_greedy.json.gz").read_bytes()))["prompts"]
        recording = json.loads(gzip.decompress((folder / "eagle3/pocket_drafts.json.gz").read_bytes()))["drafts"]
        self.assertEqual([one["draft"] for one in recording], ["draft-mla", "draft-llama"])
        for one in recording:
            draft = load_draft(HERE / one["draft"], target.embed_tokens.weight)
            compared = 0
            for line in one["prompts"][::4]:
                prompt = prompts[line["prompt"]]
                drafts, _ = chains(target, draft, prompt["ids"], answer_of(prompt))
                self.assertEqual(len(drafts), len(line["drafts"]))
                for got, wanted, lead in zip(drafts, line["drafts"], line["leads"]):
                    if lead > 0.01:
                        self.assertEqual(got, wanted, one["draft"])
                        compared += 1
            self.assertGreater(compared, 100)


if __name__ == "__main__":
    unittest.main()
