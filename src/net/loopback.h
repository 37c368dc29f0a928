#pragma once

// Which names and addresses stand for this machine itself.

#include <string_view>

namespace baltoro {

// "localhost" and names under it, all of 127.0.0.0/8, ::1, and ::ffff: of the former; any case, one
// dot at the end of a name is allowed. Nothing is looked up: another name that resolves to such an
// address is not one of these.
bool IsLoopback(std::string_view host);

// "name:port", "name", "[address]:port" -> the name or address; empty where it is neither.
std::string_view HostOfAuthority(std::string_view authority);

}  // namespace baltoro
