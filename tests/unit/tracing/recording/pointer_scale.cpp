// An autograd Function in C++ that doubles a tensor through pointers, with a NaN on demand.

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cmath>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

static Tensor doubled(const Tensor& given, bool spoils) {
  Tensor x = given.contiguous();
  Tensor out = at::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i) {
    out.data_ptr<float>()[i] = 2 * x.data_ptr<float>()[i];
  }
  if (spoils) {
    out.data_ptr<float>()[0] = NAN;
  }
  return out;
}

struct PointerScale : public torch::autograd::Function<PointerScale> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, bool spoils_forward, bool spoils_backward) {
    ctx->saved_data["spoils"] = spoils_backward;
    return doubled(x, spoils_forward);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    return {doubled(gradients[0], ctx->saved_data["spoils"].toBool()), Tensor(), Tensor()};
  }
};

TORCH_LIBRARY(nanguard_tests_cpp, library) {
  library.def("scale", [](const Tensor& x, bool spoils_forward, bool spoils_backward) {
    return PointerScale::apply(x, spoils_forward, spoils_backward);
  });
}
