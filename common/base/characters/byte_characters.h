// How the files of byte-level BPE (GPT-2's vocab.json and merges.txt, tokenizer.json) write bytes.
#pragma once

#include <array>
#include <string>

namespace nsa {

// Each byte in UTF-8: as the character with that code if it is printable; the other bytes, in
// order, as U+0100, U+0101, …
std::array<std::string, 256> BytesAsCharacters();

}  // namespace nsa
