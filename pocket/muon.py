"""Muon: momentum whose steps are made orthogonal, for the matrices of hidden layers; equal shapes are computed together."""
import torch


def orthogonal(m):
    """About the nearest orthogonal matrices of [count, rows, columns], by five steps of Newton and Schulz."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = m.bfloat16() if m.is_cuda else m
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        g = x @ x.transpose(1, 2)
        x = a * x + (b * g + c * g @ g) @ x
    return x.transpose(1, 2) if tall else x


class Muon(torch.optim.Optimizer):
    def __init__(self, parameters, lr, momentum=0.95, weight_decay=0.0):
        super().__init__(list(parameters), dict(lr=lr, momentum=momentum, weight_decay=weight_decay))
        self.same = {}
        for p in self.param_groups[0]["params"]:
            self.same.setdefault(tuple(p.shape), []).append(p)
        self.speeds = {shape: torch.zeros(len(ps), shape[0], ps[0].numel() // shape[0], device=ps[0].device) for shape, ps in self.same.items()}

    @torch.no_grad()
    def step(self):
        group = self.param_groups[0]
        for shape, parameters in self.same.items():
            speed = self.speeds[shape]
            g = torch.stack([p.grad.flatten(1) for p in parameters])
            speed.lerp_(g, 1 - group["momentum"])
            step = orthogonal(g.lerp(speed, group["momentum"])).float() * max(1.0, speed.shape[1] / speed.shape[2]) ** 0.5
            for p, s in zip(parameters, step):
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(s.reshape(p.shape), alpha=-group["lr"])
