#pragma once

// What a server needs of a model's folder to talk in text: its vocabulary, its chat template, its
// defaults of sampling. What would fail with the first request is refused here, by flag and path.

#include <memory>
#include <string>

#include "flags/serve_options.h"
#include "server/server.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace baltoro {

struct ModelText {
  std::unique_ptr<Tokenizer> tokenizer;         // null: --skip-tokenizer-init
  std::unique_ptr<ChatTemplate> chat_template;  // null: the model has none
};

// Of the model in `dir`, which has `vocab` tokens.
Result<ModelText> LoadModelText(const ServeOptions& options, const std::string& dir, int64_t vocab);

// What /tokenizer_info tells: tokenizer_config.json as far as it is here, with special tokens as
// their texts and no paths of files, and the chat template that is in force.
Result<Json> ReadTokenizerInfo(const ServeOptions& options,
                               const std::string& dir,
                               const ChatTemplate* chat_template);

// Defaults of sampling from generation_config.json and --override-generation-config.
Status ReadGenerationDefaults(const ServeOptions& options,
                              const std::string& dir,
                              ServerConfig& out);

}  // namespace baltoro
