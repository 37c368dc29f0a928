#pragma once

// Which addresses a server may connect to for a stranger.

#include <sys/socket.h>

namespace baltoro {

enum class AddressKind {
  kPublic,   // reached from anywhere
  kPrivate,  // of this machine, or of the networks that it is in
  kNever,    // services of clouds and links, groups, and what stands for nothing
};

// By the registries of special-purpose addresses (RFC 6890 and what came after it), and by where
// clouds answer with credentials. An IPv6 address that stands for an IPv4 one is judged as that, or
// refused.
AddressKind KindOfAddress(const sockaddr& address);

}  // namespace baltoro
