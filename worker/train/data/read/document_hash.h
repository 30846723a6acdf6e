// The hash by which documents are compared and divided into training and validation.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "worker/train/data/read/documents.h"

namespace nsa::train {

using DocumentHash = std::pair<uint64_t, uint64_t>;  // high, low of XXH3-128

// Of the text of a document, or of its tokens as little-endian uint16; if one of them is above
// 65,535, of all as uint32, with a seed. So a document of small tokens has one hash, whatever the
// vocabulary.
DocumentHash HashOf(const Document& document);

// Whether a document with this hash is for validation, with data.val_fraction: its content decides,
// so all copies are on the same side.
bool IsHeldOut(const DocumentHash& hash, double fraction);

// Appends a hash as it is stored: 16 bytes, big-endian as XXH128_canonicalFromHash().
void AppendHash(const DocumentHash& hash, std::string* to);

// The hash in the first 16 bytes, which must be there.
DocumentHash StoredHash(std::string_view bytes);

}  // namespace nsa::train
