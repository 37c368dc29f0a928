#pragma once

// The items that an answer of /v1/responses was made from, a page at a time.

#include <optional>
#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/response_store.h"

namespace baltoro {

// `query`: limit (1 to 100, else 20), order (asc or desc, which is the rule), after (the id of the
// last item of the page before), percent-encoded. Items without an id, or with that of an earlier
// one, have one made of the answer's and their place, and texts of messages are lists of parts.
// Pictures have the URL that was sent; of a data: URL over 1 KiB its head, and "..." for the data.
std::optional<ApiError> InputItemsPage(const std::string& response_id,
                                       const StoredResponse& stored,
                                       std::string_view query,
                                       std::string& out);

}  // namespace baltoro
