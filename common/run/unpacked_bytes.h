// What a message takes in memory, counted before it is unpacked. Two bytes on the wire can be an
// empty element, which takes some two hundred: a message of 4 MiB would take 400 MiB.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "google/protobuf/descriptor.h"

namespace nsa {

// A message may have so many elements, and one for each of so many bytes. An element is what takes
// memory of its own: a text, a message, a field that is not known.
inline constexpr int64_t kElementsOfAnyMessage = 10'000;
inline constexpr int64_t kBytesOfAnElement = 8;

// About how many bytes of memory `bytes` take when they are unpacked as a message of this type.
// Nothing when it has too many elements. For bytes that are no message: what is taken until the
// parser refuses them.
std::optional<int64_t> UnpackedBytes(const google::protobuf::Descriptor& type,
                                     std::string_view bytes);

}  // namespace nsa
