"""Where torchvision's data sets are on the internet.

torchvision's own downloads start anew where they broke off, write to the final name, and unpack whatever an archive
says wherever it says; and it can't be asked which files it would fetch. Hence this list; a test compares it with what
torchvision fetches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Files:
    """What one data set is downloaded as."""

    addresses: tuple[str, ...]
    """of the folder that has all its files; the next is asked where one fails"""
    md5_of: Mapping[str, str | None]
    """each file's"""
    folder: str = "."
    """below the data set's own folder, and in a mirror; archives are unpacked where they lie"""
    archives_within: str | None = None
    """a folder of archives, where the archive itself holds one"""


_MNIST_NAMES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def _like_mnist(name: str, addresses: tuple[str, ...], *md5s: str) -> Files:
    names = (f"{name}-ubyte.gz" for name in _MNIST_NAMES)
    return Files(addresses, dict(zip(names, md5s, strict=True)), f"{name}/raw")


TORCHVISION_FILES: dict[str, Files] = {
    "CIFAR10": Files(
        ("https://www.cs.toronto.edu/~kriz/",), {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"}
    ),
    "CIFAR100": Files(
        ("https://www.cs.toronto.edu/~kriz/",), {"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"}
    ),
    "Caltech101": Files(
        ("https://data.caltech.edu/records/mzrjq-6wc02/files/",),
        {"caltech-101.zip": "3138e1922a9193bfa496528edbbc45d0"},
        "caltech101",
        archives_within="caltech-101",
    ),
    "Caltech256": Files(
        ("https://data.caltech.edu/records/nyy15-4j048/files/",),
        {"256_ObjectCategories.tar": "67b4f42ca05d46448c6bb8ecd2220f6d"},
        "caltech256",
    ),
    "Country211": Files(
        ("https://openaipublic.azureedge.net/clip/data/",), {"country211.tgz": "84988d7644798601126c29e9877aab6a"}
    ),
    "DTD": Files(
        ("https://www.robots.ox.ac.uk/~vgg/data/dtd/download/",),
        {"dtd-r1.0.1.tar.gz": "fff73e5086ae6bdbea199a49dfb8a4c1"},
        "dtd",
    ),
    "EMNIST": Files(
        ("https://biometrics.nist.gov/cs_links/EMNIST/",),
        {"gzip.zip": "58c8d27c78d21e728a6bc7b3cc06412e"},
        "EMNIST/raw",
        archives_within="gzip",
    ),
    "EuroSAT": Files(
        ("https://huggingface.co/datasets/torchgeo/eurosat/resolve/c877bcd43f099cd0196738f714544e355477f3fd/",),
        {"EuroSAT.zip": "c8fa014336c82ac7804f0398fcb19387"},
        "eurosat",
    ),
    "FGVCAircraft": Files(
        ("https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/archives/",), {"fgvc-aircraft-2013b.tar.gz": None}
    ),
    "FashionMNIST": _like_mnist(
        "FashionMNIST",
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    "Flowers102": Files(
        ("https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",),
        {
            "102flowers.tgz": "52808999861908f626f3c1f4e79d11fa",
            "imagelabels.mat": "e0620be6f572b9609742df49c70aed4d",
            "setid.mat": "a5357ecc9cb78c4bef273ce3793fc85c",
        },
        "flowers-102",
    ),
    "Food101": Files(("http://data.vision.ee.ethz.ch/cvl/",), {"food-101.tar.gz": "85eeb15f3717b99a5da872d97d918f87"}),
    "GTSRB": Files(
        ("https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370/",),
        {
            "GTSRB-Training_fixed.zip": "513f3c79a4c5141765e10e952eaa2478",
            "GTSRB_Final_Test_Images.zip": "c7e4e6327067d32654124b0fe9e82185",
            "GTSRB_Final_Test_GT.zip": "fe31e9c9270bbcd7b84b7f21a9d9d9e5",
        },
        "gtsrb",
    ),
    "Imagenette": Files(
        ("https://s3.amazonaws.com/fast-ai-imageclas/",), {"imagenette2.tgz": "fe2fc210e6bb7c5664d602c3cd71e612"}
    ),
    "KMNIST": _like_mnist(
        "KMNIST",
        ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
        "bdb82020997e1d708af4cf47b453dcf7",
        "e144d726b3acfaa3e44228e80efcd344",
        "5c965bf0a639b31b8f53240b1b52f4d7",
        "7320c461ea6c1c855c0b718fb2a4b134",
    ),
    "MNIST": _like_mnist(
        "MNIST",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    "OxfordIIITPet": Files(
        ("https://www.robots.ox.ac.uk/~vgg/data/pets/data/",),
        {
            "images.tar.gz": "5c4f3ee8e5d25df40f4fd59a7f44e54c",
            "annotations.tar.gz": "95a8c909bbe2e81eed6a22bccdf3f68f",
        },
        "oxford-iiit-pet",
    ),
    "QMNIST": Files(
        ("https://raw.githubusercontent.com/facebookresearch/qmnist/master/",),
        {
            "qmnist-train-images-idx3-ubyte.gz": "ed72d4157d28c017586c42bc6afe6370",
            "qmnist-train-labels-idx2-int.gz": "0058f8dd561b90ffdd0f734c6a30e5e4",
            "qmnist-test-images-idx3-ubyte.gz": "1394631089c404de565df7b7aeaf9412",
            "qmnist-test-labels-idx2-int.gz": "5b5b05890a5e13444e108efe57b788aa",
        },
        "QMNIST/raw",
    ),
    "RenderedSST2": Files(
        ("https://openaipublic.azureedge.net/clip/data/",), {"rendered-sst2.tgz": "2384d08e9dcfa4bd55b324e610496ee5"}
    ),
    "SEMEION": Files(
        ("http://archive.ics.uci.edu/ml/machine-learning-databases/semeion/",),
        {"semeion.data": "cb545d371d2ce14ec121470795a77432"},
    ),
    "STL10": Files(
        ("http://ai.stanford.edu/~acoates/stl10/",), {"stl10_binary.tar.gz": "91f7769df0f17e558f3565bffb0c7dfb"}
    ),
    "SUN397": Files(
        ("http://vision.princeton.edu/projects/2010/SUN/",), {"SUN397.tar.gz": "8ca2778205c41d23104230ba66911c7a"}
    ),
    "SVHN": Files(
        ("http://ufldl.stanford.edu/housenumbers/",),
        {
            "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        },
    ),
    "USPS": Files(
        ("https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/",),
        {
            "usps.bz2": "ec16c51db3855ca6c91edd34d0e9b197",
            "usps.t.bz2": "8ea070ee2aca1ac39742fdd1ef5ed118",
        },
    ),
}
