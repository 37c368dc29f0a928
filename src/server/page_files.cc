#include "server/page_files.h"

namespace baltoro {
namespace {

constexpr std::string_view kHtml = "text/html; charset=utf-8";
constexpr std::string_view kScript = "text/javascript; charset=utf-8";

constexpr PageFile kFiles[] = {
    {.name = "index.html", .content_type = kHtml, .text =
#include "server/page/index.html.inc"
    },
    {.name = "style.css",
     .content_type = "text/css; charset=utf-8",
     .text =
#include "server/page/style.css.inc"
         , .always = true},
    {.name = "icon.svg",
     .content_type = "image/svg+xml",
     .text =
#include "server/page/icon.svg.inc"
         , .always = true},
    {.name = "api.js", .content_type = kScript, .text =
#include "server/page/api.js.inc"
    },
    {.name = "app.js", .content_type = kScript, .text =
#include "server/page/app.js.inc"
    },
    {.name = "chat.js", .content_type = kScript, .text =
#include "server/page/chat.js.inc"
    },
    {.name = "code.js", .content_type = kScript, .text =
#include "server/page/code.js.inc"
    },
    {.name = "markdown.js", .content_type = kScript, .text =
#include "server/page/markdown.js.inc"
    },
    {.name = "pictures.js", .content_type = kScript, .text =
#include "server/page/pictures.js.inc"
    },
    {.name = "state.js", .content_type = kScript, .text =
#include "server/page/state.js.inc"
    },
};

}  // namespace

const PageFile* FindPageFile(std::string_view name) {
  for (const PageFile& file : kFiles) {
    if (file.name == name) return &file;
  }
  return nullptr;
}

}  // namespace baltoro
