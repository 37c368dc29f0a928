// What choices ask of the card.

#include "ops/cuda/launch/card.h"
#include "ops/cuda/launch_table/ask.h"
#include "ops/cuda/launch_table/questions_card.h"

namespace baltoro::cuda::launch_table {

void TellCard(Asker& asker) {
  Table table;
  TellCard(ThisCard(), table);
  for (const auto& [question, answer] : table.answers()) asker.Tell(question, answer);
}

}  // namespace baltoro::cuda::launch_table
