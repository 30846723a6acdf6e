// A place in a stream: a token of a document of a file of an epoch.
#pragma once

#include <cstdint>

#include "nsa/v1/checkpoint.pb.h"

namespace nsa::train {

// All are 0-based.
struct StreamPlace {
  int64_t epoch = 0;
  int64_t file = 0;      // its turn in the epoch, not its place in the list
  int64_t document = 0;  // Document::index
  int64_t token = 0;     // the separator in front of a document is its token 0
  bool operator==(const StreamPlace&) const = default;
};

inline StreamPlace PlaceOf(const v1::StreamPosition& position) {
  return {position.epoch(), position.file(), position.document(), position.token()};
}

// As a cursor has it. `sequence`: how many sequences of the source begin before the place.
inline v1::StreamPosition PositionOf(const StreamPlace& place, int64_t sequence) {
  v1::StreamPosition position;
  position.set_epoch(place.epoch);
  position.set_file(place.file);
  position.set_document(place.document);
  position.set_token(place.token);
  position.set_sequence(sequence);
  return position;
}

}  // namespace nsa::train
