#pragma once

// Looks at this machine. Nothing here judges. Of GPUs that nobody holds some memory is taken for a
// second, to measure them.

#include <string>

#include "doctor/facts.h"

namespace baltoro {

struct DoctorAsk {
  std::string model;  // empty: none
  bool sums = false;
  int port = 8000, master_port = 29501, replica_port = 29550;
  std::string program;  // for the pocket model
};

NodeFacts GatherFacts(const DoctorAsk& ask);

CardFactsOfNode GatherCards();
// Nothing is measured on GPUs of which one is held.
CardRates MeasureCards(const CardFactsOfNode& facts);
HostFacts GatherHost();
NetFacts GatherNet(const DoctorAsk& ask);
ModelFacts GatherModel(const DoctorAsk& ask);

// GB/s at which `threads` threads together read memory, for about half a second; -1 where there is
// no memory for it.
double MeasureReadRate(int threads);

}  // namespace baltoro
