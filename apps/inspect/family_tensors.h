#pragma once

// Every tensor that a model of the family needs, by its configuration alone.

#include <cstdint>
#include <string>
#include <vector>

#include "model/k2_config.h"

namespace baltoro {

struct FamilyMatrix {
  std::string module;  // canonical: "model.layers.0.self_attn.o_proj"
  int64_t outputs = 0, inputs = 0;
};

struct FamilyVector {
  std::string name;  // canonical, with its parameter
  int64_t size = 0;
  bool optional = false;
};

struct FamilyTensors {
  std::vector<FamilyMatrix> projections;  // in any stored form
  std::vector<FamilyMatrix> plain;        // never quantised: embedding, head, routers
  std::vector<FamilyVector> vectors;
};

FamilyTensors TensorsOfFamily(const K2Config& config);

}  // namespace baltoro
