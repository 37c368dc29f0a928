#include "doctor/gather.h"

namespace baltoro {

NodeFacts GatherFacts(const DoctorAsk& ask) {
  // One after the other: what is measured shall have the machine for itself.
  return {.card = GatherCards(),
          .host = GatherHost(),
          .net = GatherNet(ask),
          .model = GatherModel(ask)};
}

}  // namespace baltoro
