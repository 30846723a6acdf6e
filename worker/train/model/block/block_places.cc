// Where the parameters of a block are.
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/train/model/block/block.h"

namespace nsa::train {

BlockPlaces BlockPlaces::Of(const ParameterLayout& layout, int32_t layer) {
  const auto find = [&](std::string_view name) -> Place {
    const auto found = layout.Find(
        absl::StrCat("blocks.", layer, ".", absl::string_view(name.data(), name.size())));
    return found.ok() ? Place{(*found)->offset, (*found)->size} : Place{};
  };
  const auto phi = [&](const std::string& name) -> PhiPlaces {
    return {.position = find(name + ".position"),
            .fc1_w = find(name + ".fc1.weight"),
            .fc1_b = find(name + ".fc1.bias"),
            .fc2_w = find(name + ".fc2.weight"),
            .fc2_b = find(name + ".fc2.bias")};
  };
  BlockPlaces p{.norm1 = find("norm1.weight"),
                .out = find("attn.out.weight"),
                .q_norm = find("attn.q_norm.weight"),
                .k_norm = find("attn.k_norm.weight"),
                .gate_fc1_w = find("attn.gate.fc1.weight"),
                .gate_fc1_b = find("attn.gate.fc1.bias"),
                .gate_fc2_w = find("attn.gate.fc2.weight"),
                .gate_fc2_b = find("attn.gate.fc2.bias"),
                .phi_k = phi("attn.phi_k"),
                .phi_v = phi("attn.phi_v"),
                .norm2 = find("norm2.weight"),
                .fc1 = find("mlp.fc1.weight"),
                .fc2 = find("mlp.fc2.weight")};
  // All projections lie between W_Q and `out`.
  p.projections.offset = find("attn.W_Q.weight").offset;
  p.projections.size = p.out.offset - p.projections.offset;
  if (const Place bias = find("attn.W_Q.bias"); bias.size > 0) {
    p.projection_bias = {bias.offset, p.projections.size / p.norm1.size};  // norm1 has D weights
  }
  if (const Place gate = find("mlp.gate.weight"); gate.size > 0) {
    p.fc1 = {gate.offset, gate.size + p.fc1.size};
  }
  return p;
}

ModelPlaces ModelPlaces::Of(const ParameterLayout& layout, int32_t layers) {
  const auto find = [&](std::string_view name) -> Place {
    const auto found = layout.Find(name);
    return found.ok() ? Place{(*found)->offset, (*found)->size} : Place{};
  };
  ModelPlaces places = {.embed = find("embed.weight"),
                        .norm_f = find("norm_f.weight"),
                        .head = find("lm_head.weight"),
                        .blocks = {}};
  if (places.head.size == 0) places.head = places.embed;  // model.tie_embeddings
  for (int32_t layer = 0; layer < layers; ++layer) {
    places.blocks.push_back(BlockPlaces::Of(layout, layer));
  }
  return places;
}

std::vector<ElementRange> ModelPlaces::AddedTo(int64_t size) const {
  std::vector<ElementRange> ranges;
  int64_t begin = 0;
  const auto skip = [&](const Place& place) {
    ranges.push_back({begin, place.offset - begin});
    begin = place.offset + place.size;
  };
  if (tied()) skip(head);
  for (const BlockPlaces& block : blocks) {
    for (const Place& place : {block.projections, block.out, block.fc1, block.fc2}) skip(place);
  }
  if (!tied()) skip(head);
  ranges.push_back({begin, size - begin});
  return ranges;
}

std::vector<int64_t> ModelPlaces::PartBegins() const {
  std::vector<int64_t> begins = {norm_f.offset};
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    begins.push_back(block->norm2.offset);
    begins.push_back(block->norm1.offset);
  }
  begins.push_back(0);
  return begins;
}

}  // namespace nsa::train
