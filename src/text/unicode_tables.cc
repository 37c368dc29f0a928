#include "text/unicode_tables.h"

namespace baltoro {

#include "text/unicode_tables.inc"

}  // namespace baltoro
