// Any bytes as a safetensors file: whatever Open() accepts can be read to the last byte, and no
// tensor lies outside the file.
#include <vector>

#include "common/checkpoint/safetensors_file.h"
#include "tests/fuzz/fuzz.h"

using nsa::fuzz::Input;
using nsa::fuzz::Require;
using nsa::fuzz::RequireRefusal;

namespace {

// The header with its length before it, as a mutation would hardly make it.
std::string Framed(std::string_view header, std::string_view data) {
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return file.append(header).append(data);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const uint8_t kind = input.Byte();
  std::string bytes(input.Rest());
  if (kind % 2 == 1) {
    const std::string header(input.Text());
    bytes = Framed(header, input.Rest());
  }
  const auto types =
      kind / 2 % 2 == 0 ? nsa::SafetensorsTypes::kF32 : nsa::SafetensorsTypes::kFloats;
  const auto file = nsa::SafetensorsFile::Open(nsa::fuzz::File("model.safetensors", bytes), types);
  RequireRefusal(file.status());
  if (!file.ok()) return 0;
  for (const auto& [name, tensor] : (*file)->tensors()) {
    Require(tensor.size >= 0 && tensor.offset >= 8 && tensor.bytes() >= 0 &&
                tensor.offset + tensor.bytes() <= static_cast<int64_t>(bytes.size()),
            "a tensor outside its file");
    std::vector<std::byte> raw(static_cast<size_t>(tensor.bytes()));
    Require((*file)->ReadBytes(tensor, 0, raw).ok(), "a tensor that cannot be read");
  }
  return 0;
}
