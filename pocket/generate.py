"""Greedy generation with the pocket model, many prompts at a time, and the judging of what it says."""
import json

import torch

from modeling import norm, packed_attention


class Generator:
    def __init__(self, model, stop):
        """model: a PocketModel in its final type, on its device. stop: the token that ends a turn."""
        self.model, self.stop = model, stop
        self.device = model.norm.device

    @torch.no_grad()
    def batch(self, prompts, budgets, seen=None):
        """Continuations (token lists without the stop token) of one batch.

        seen: what stands in the place of the placeholders of all the prompts, in their order: (the placeholder, [count, hidden])."""
        m, c, dev = self.model, self.model.c, self.device
        dtype = torch.get_autocast_dtype(dev.type) if torch.is_autocast_enabled(dev.type) else m.lm_head.weight.dtype
        lengths = torch.tensor([len(p) for p in prompts], device=dev)
        rows, longest = len(prompts), max(map(len, prompts))
        room = longest + max(budgets)
        h, qk, v = c["num_attention_heads"], c["qk_nope_head_dim"] + c["qk_rope_head_dim"], c["v_head_dim"]
        keys = [torch.zeros(rows, h, room, qk, device=dev, dtype=dtype) for _ in m.layers]
        values = [torch.zeros(rows, h, room, v, device=dev, dtype=dtype) for _ in m.layers]
        ids = torch.tensor([t for p in prompts for t in p], device=dev)
        row = torch.repeat_interleave(torch.arange(rows, device=dev), lengths)
        starts = torch.cumsum(lengths, 0) - lengths
        position = torch.arange(len(ids), device=dev) - starts[row]
        bounds = torch.cat((starts, starts[-1:] + lengths[-1:])).int()
        x = m.embed_tokens(ids).float()
        if seen is not None:
            x[ids == seen[0]] = seen[1].float()
        cos, sin = m.angles(position)
        for i, layer in enumerate(m.layers):
            a = layer.self_attn
            q, k, val = a.project(norm(x, layer.input_layernorm, layer.eps).to(dtype), cos, sin)
            keys[i][row, :, position] = k.to(dtype)
            values[i][row, :, position] = val.to(dtype)
            padded = torch.nn.functional.pad(val, (0, qk - v))
            out = packed_attention(q, k, padded, bounds, longest, a.scale)[..., :v]
            x = self.rest(layer, x, a.o_proj(out.flatten(-2)), dtype)
        logits = m.lm_head(norm(x[(bounds[1:] - 1).long()], m.norm, c["rms_norm_eps"]).to(dtype))
        outputs = torch.full((rows, max(budgets)), self.stop, device=dev)
        budget = torch.tensor(budgets, device=dev)
        done = torch.zeros(rows, dtype=torch.bool, device=dev)
        every = torch.arange(rows, device=dev)
        span = torch.arange(room, device=dev)
        for step in range(max(budgets)):
            token = logits.argmax(-1)
            done |= (token == self.stop) | (step >= budget)
            outputs[:, step] = torch.where(done, self.stop, token)
            if step % 16 == 15 and bool(done.all()):
                break
            x = m.embed_tokens(token).float()
            cos, sin = m.angles(lengths)
            mask = torch.where(span[None] <= lengths[:, None], 0.0, float("-inf"))[:, None]
            for i, layer in enumerate(m.layers):
                a = layer.self_attn
                q, k, val = a.project(norm(x, layer.input_layernorm, layer.eps).to(dtype), cos, sin)
                keys[i][every, :, lengths] = k.to(dtype)
                values[i][every, :, lengths] = val.to(dtype)
                scores = torch.einsum("bhd,bhld->bhl", q, keys[i]).float() * a.scale + mask
                out = torch.einsum("bhl,bhld->bhd", scores.softmax(-1).to(dtype), values[i]).to(dtype)
                x = self.rest(layer, x, a.o_proj(out.flatten(-2)), dtype)
            logits = m.lm_head(norm(x, m.norm, c["rms_norm_eps"]).to(dtype))
            lengths = torch.clamp(lengths + 1, max=room - 1)
        result = []
        for line in outputs.tolist():
            result.append(line[:line.index(self.stop)] if self.stop in line else line)
        return result

    @staticmethod
    def rest(layer, x, attended, dtype):
        x = x + attended
        y = norm(x, layer.post_attention_layernorm, layer.eps).to(dtype)
        return x + (layer.mlp(y) if layer.dense else layer.mlp(y)[0])

    def all(self, prompts, budgets, tokens_at_once=500_000):
        order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]) // 256, budgets[i]))
        out, start = [None] * len(prompts), 0
        while start < len(order):
            end, room = start, 0
            while end < len(order) and end - start < 320:
                i = order[end]
                room = max(room, len(prompts[i]) + max(budgets[j] for j in order[start:end + 1]))
                if room * (end - start + 1) > tokens_at_once and end > start:
                    break
                end += 1
            part = order[start:end]
            for i, line in zip(part, self.batch([prompts[i] for i in part], [budgets[i] for i in part])):
                out[i] = line
            start = end
        return out


def parse(tokenizer, ids, thinking):
    """(reasoning, content, calls) of a generated turn."""
    s = tokenizer.special
    reasoning, rest = "", list(ids)
    if thinking:
        if s["</think>"] not in rest:
            return tokenizer.decode(rest), "", []
        at = rest.index(s["</think>"])
        reasoning, rest = tokenizer.decode(rest[:at]), rest[at + 1:]
    calls = []
    if s["<|tool_calls_section_begin|>"] in rest:
        at = rest.index(s["<|tool_calls_section_begin|>"])
        rest, section = rest[:at], rest[at + 1:]
        text = tokenizer.decode(section)
        for part in text.split("<|tool_call_begin|>")[1:]:
            head, _, tail = part.partition("<|tool_call_argument_begin|>")
            arguments = tail.partition("<|tool_call_end|>")[0]
            try:
                arguments = json.loads(arguments)
            except ValueError:
                arguments = None
            calls.append({"id": head, "name": head.rpartition(":")[0].removeprefix("functions."), "arguments": arguments})
    return reasoning, tokenizer.decode(rest, specials=True).strip(), calls


def right(expect, content, calls):
    kind = expect["kind"]
    if kind == "tool_calls":
        return [{"name": c["name"], "arguments": c["arguments"]} for c in calls] == expect["calls"]
    if kind == "exact":
        return content == expect["text"].strip() and not calls
    return expect["text"] in content and not (kind == "text" and calls)
