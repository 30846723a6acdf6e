// What the tests of the decoders on both devices change in a small job: every option of the
// attention that decoding depends on.
#pragma once

#include <initializer_list>

#include "nsa/v1/job.pb.h"
#include "tests/worker/train/decode/decode_case.h"
#include "tests/worker/train/tiny_job.h"

namespace nsa::train {

struct Variant {
  const char* name;
  void (*change)(v1::JobSpec* spec);
};

inline void SetBranches(v1::JobSpec* spec, std::initializer_list<v1::Branch> branches) {
  spec->mutable_nsa()->clear_branches();
  for (const v1::Branch branch : branches) spec->mutable_nsa()->add_branches(branch);
}

inline constexpr Variant kVariants[] = {
    {"AllBranches", [](v1::JobSpec*) {}},
    {"PhiMlp", [](v1::JobSpec* spec) { spec->mutable_nsa()->set_phi(v1::PHI_MLP); }},
    {"Sigmoid", [](v1::JobSpec* spec) { spec->mutable_nsa()->set_gate(v1::GATE_SIGMOID); }},
    {"CmpOnly", [](v1::JobSpec* spec) { SetBranches(spec, {v1::BRANCH_CMP}); }},
    {"SelOnly", [](v1::JobSpec* spec) { SetBranches(spec, {v1::BRANCH_SEL}); }},
    {"WinOnly", [](v1::JobSpec* spec) { SetBranches(spec, {v1::BRANCH_WIN}); }},
    {"CmpSel",
     [](v1::JobSpec* spec) {
       SetBranches(spec, {v1::BRANCH_CMP, v1::BRANCH_SEL});
     }},
    {"CmpWin",
     [](v1::JobSpec* spec) {
       SetBranches(spec, {v1::BRANCH_CMP, v1::BRANCH_WIN});
     }},
    {"SelWin",
     [](v1::JobSpec* spec) {
       SetBranches(spec, {v1::BRANCH_SEL, v1::BRANCH_WIN});
     }},
    {"LayersInTurn",
     [](v1::JobSpec* spec) {
       SetLayers(spec, {"win", "cmp+sel"});
     }},
    {"LayersInTurnWithPhi",
     [](v1::JobSpec* spec) {
       SetLayers(spec, {"sel", "cmp+win"});
       spec->mutable_nsa()->set_phi(v1::PHI_MLP);
     }},
    // Dense attention: a window of all tokens.
    {"WindowOfAllTokens",
     [](v1::JobSpec* spec) {
       SetBranches(spec, {v1::BRANCH_WIN});
       spec->mutable_nsa()->set_w(1000);
     }},
    {"FullAndWindowsAndBlocks",
     [](v1::JobSpec* spec) {
       spec->mutable_model()->set_n_layers(3);
       SetLayers(spec, {"full", "win", "sel"});
     }},
    {"FullWithoutRotationAndDocuments",
     [](v1::JobSpec* spec) {
       spec->mutable_model()->set_rope_layers(v1::ROPE_LAYERS_WINDOW);
       SetLayers(spec, {"cmp+win", "full"});
       spec->mutable_data()->set_document_mask(true);
     }},
    {"Documents", [](v1::JobSpec* spec) { spec->mutable_data()->set_document_mask(true); }},
    {"DocumentsWithoutCmp",
     [](v1::JobSpec* spec) {
       spec->mutable_data()->set_document_mask(true);
       SetBranches(spec, {v1::BRANCH_SEL, v1::BRANCH_WIN});
     }},
    {"RopeScale",
     [](v1::JobSpec* spec) {
       spec->mutable_model()->set_rope_scale(4);
       spec->mutable_model()->set_rope_base(500);
     }},
    {"RotationInWindows",
     [](v1::JobSpec* spec) {
       spec->mutable_model()->set_rope_layers(v1::ROPE_LAYERS_WINDOW);
       SetLayers(spec, {"win", "cmp+sel"});
     }},
    {"RopeScalingOfLlama3",
     [](v1::JobSpec* spec) {
       spec->mutable_model()->mutable_rope_scaling()->set_type(v1::ROPE_SCALING_TYPE_LLAMA3);
       spec->mutable_model()->mutable_rope_scaling()->set_factor(8);
       spec->mutable_model()->mutable_rope_scaling()->set_original_seq_len(64);
       ApplyDefaults(spec);
     }},
    {"Yarn",
     [](v1::JobSpec* spec) {
       spec->mutable_model()->mutable_rope_scaling()->set_type(v1::ROPE_SCALING_TYPE_YARN);
       spec->mutable_model()->mutable_rope_scaling()->set_factor(4);
       spec->mutable_model()->mutable_rope_scaling()->set_original_seq_len(2000);
       ApplyDefaults(spec);
     }},
    {"QkNorm", [](v1::JobSpec* spec) { spec->mutable_model()->set_qk_norm(true); }},
    {"QkNormWithPhiAndDocuments",
     [](v1::JobSpec* spec) {
       spec->mutable_model()->set_qk_norm(true);
       spec->mutable_nsa()->set_phi(v1::PHI_MLP);
       spec->mutable_data()->set_document_mask(true);
     }},
    {"Relu2",
     [](v1::JobSpec* spec) { spec->mutable_model()->set_activation(v1::ACTIVATION_RELU2); }},
    {"NormEps",
     [](v1::JobSpec* spec) {
       spec->mutable_model()->set_norm_eps(0.01);
       spec->mutable_model()->set_qk_norm(true);
     }},
    {"Swiglu",
     [](v1::JobSpec* spec) {
       spec->mutable_model()->set_mlp(v1::MLP_SWIGLU);
       spec->mutable_model()->set_mlp_dim(48);
     }},
    {"TiedEmbeddings", [](v1::JobSpec* spec) { spec->mutable_model()->set_tie_embeddings(true); }},
    {"QkvBias", [](v1::JobSpec* spec) { spec->mutable_model()->set_qkv_bias(true); }},
    {"QkvBiasWithQkNormAndLayersInTurn",
     [](v1::JobSpec* spec) {
       spec->mutable_model()->set_qkv_bias(true);
       spec->mutable_model()->set_qk_norm(true);
       SetLayers(spec, {"win", "cmp+sel"});
     }},
    {"QkNormWeights",
     [](v1::JobSpec* spec) {
       spec->mutable_model()->set_qk_norm(true);
       spec->mutable_model()->set_qk_norm_weights(true);
       spec->mutable_model()->set_qkv_bias(true);
     }},
    {"MlpDim", [](v1::JobSpec* spec) { spec->mutable_model()->set_mlp_dim(48); }},
    {"AllOfOtherFamilies", [](v1::JobSpec* spec) { UseAllOfOtherFamilies(spec); }},
    {"AllOfOtherFamiliesInTurnWithPhiAndDocuments",
     [](v1::JobSpec* spec) {
       UseAllOfOtherFamilies(spec);
       SetLayers(spec, {"win", "cmp+sel"});
       spec->mutable_nsa()->set_phi(v1::PHI_MLP);
       spec->mutable_data()->set_document_mask(true);
     }},
    {"BlocksLongerThanTheText",
     [](v1::JobSpec* spec) {
       spec->mutable_nsa()->set_l(64);
       spec->mutable_nsa()->set_l_sel(64);
     }},
    {"ShortWindow", [](v1::JobSpec* spec) { spec->mutable_nsa()->set_w(1); }},
    {"WideHeads",
     [](v1::JobSpec* spec) {
       spec->mutable_model()->set_n_heads(16);
       spec->mutable_model()->set_n_kv_groups(1);
       spec->mutable_model()->set_d_k(64);
       spec->mutable_model()->set_d_v(128);
     }},
    {"WidthsOfThePaper",
     [](v1::JobSpec* spec) {
       spec->mutable_model()->set_d_k(192);
       spec->mutable_model()->set_d_v(128);
       spec->mutable_model()->set_n_layers(1);  // phi's products grow with (l d_k)^2
       spec->mutable_nsa()->set_l(4);
       spec->mutable_nsa()->set_d(2);
       spec->mutable_nsa()->set_phi(v1::PHI_MLP);
       spec->mutable_nsa()->set_gate(v1::GATE_SIGMOID);
     }},
    {"WideKeysWithQkNorm",
     [](v1::JobSpec* spec) {
       spec->mutable_model()->set_d_k(192);
       spec->mutable_model()->set_qk_norm(true);
     }},
};

}  // namespace nsa::train
