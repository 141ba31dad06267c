// Lets tensors without values lie on a GPU that is not there: PyTorch asks a device's guard before it takes a slice.
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

struct OneGpu final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};

static c10::impl::DeviceGuardImplRegistrar one_gpu(c10::DeviceType::CUDA, new OneGpu());

}  // namespace
